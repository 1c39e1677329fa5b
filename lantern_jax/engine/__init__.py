"""From a job to tokens: compiled programs, the devices they run on, the results."""
