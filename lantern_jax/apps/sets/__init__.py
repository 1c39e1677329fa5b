"""Picture sets: thousands of pictures in shards, made by any number of workers, resumable after any stop."""
