"""How good pictures are: features of networks, distances between sets, agreement with prompts."""
