"""One hour on a GPU: what has only been simulated so far is seen on a real one, in order of what matters.

``rows`` says what is to be seen; ``steps`` look, each a child process with a time limit; ``runner`` starts
them
and ends all that they started; ``result`` is the file that they fill, ``table`` its words; ``kit`` packs
it all
for a machine that has a driver, a Python and nothing else. Everything on a GPU is done by Partage itself.
"""
