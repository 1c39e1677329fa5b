"""Picture sets: thousands of pictures in shards, by any number of workers, whatever stops them in between."""
