"""The applications on top of the library, which imports none of them: the command, the server, sets, measurements."""
