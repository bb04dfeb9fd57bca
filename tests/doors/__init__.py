"""Every public callable with every kind of bad value: it is refused in one clear sentence, or accepted with a reason.

`walk` finds the callables and calls them; `good` holds the good values of arguments by their names, `values` the bad
ones, `rules` says what may be accepted, and `inside` which public names users do not call. A new public callable needs
a line in `good` for each required argument whose name is new.
"""
