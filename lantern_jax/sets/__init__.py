"""Picture sets: thousands of pictures in shards, by any number of workers, resumable after any stop."""
