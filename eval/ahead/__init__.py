"""Programs compiled for absent devices: what the devices' own compilers say about memory, copies and work."""
