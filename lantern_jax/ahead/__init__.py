"""Programs compiled for devices that are not here: what their own compilers say of memory, copies and work."""
