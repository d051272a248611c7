"""The program of a *rank*, which is one process of the mesh.

A rank connects to a Unix socket in the folder of its supervisor. `Controller` is its end of the
socket, a `Link` the other. Then it imports, takes its device, joins the process group, and runs
cases and answers until the socket closes.

Why it is built like this:

1. A rank connects before it imports anything heavy, so that its death is noticed at any moment.
   So import from the modules: this package and those below it load nothing by themselves.
2. A separate thread reads the socket: it answers while the main thread is in a collective.
3. A rank ends when its socket closes, and kills its descendants.
"""
