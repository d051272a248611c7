"""Published implementations: a folder for each library, and the modules that they share.

    library             find the folders; one step of a library as a candidate
    bugs                read the listed bugs of a folder
    environment         make and find the environment in which a library's ranks run
    interpreters        another Python for it, and the packages that such environments share
    flash_stand_in      flash-attn in plain torch, for ranks without a GPU
    wiring              rows, limits, losses and stand-ins that the folders share

1. Every other folder wires one published package; `library` describes its files. To add a library
   is to add a folder: no other code knows its name.
2. Pins of libraries conflict, so the ranks of each library run in an environment of its own.
3. Limits and listed bugs can be read without the library, in any process.
"""
