"""What users see, written down as bytes for one checkout, to be compared with that of another.

For changes that are to change nothing: a move of files, a merge of classes. ``python -m tools.freeze write
CHECKOUT FOLDER`` writes, ``compare FOLDER FOLDER`` says what differs, ``cross OLD NEW`` lets the verbs of
each ask the helper of the other. Inputs (policies, machines, stories) are those of this checkout, so both
answer the same questions. Only the installed command is called; what has to be looked for in the code is
found by class, not by module, so the layout of the checkout does not matter.

It is a tool and no test: 20 MB that only mean something against another commit, and most of it may change
with any commit that means to. What has to be readable for ever is in ``tests/frozen``.
"""
