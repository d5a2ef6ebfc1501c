"""The console: a page and a management HTTP API over what nodes, leader and store already say.

A process of its own, and a client like any other: whoever logs in is logged in at the broker under
the same name, and everything is asked and done over that connection. So the broker's roles are the
only ones, checked where they always are, and a console that is taken over can do no more than those
who are logged in.
"""
