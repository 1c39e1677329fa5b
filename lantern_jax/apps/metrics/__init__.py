"""The quality of pictures: features of networks, distances between sets, agreement with prompts."""
