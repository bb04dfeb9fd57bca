"""A door is a public callable. It refuses each bad value in one clear sentence, or accepts it for a reason.

`walk` finds the doors and calls them; `good` holds the good values of arguments by name, `values` the bad values,
`rules` the bad values that may be accepted, and `inside` the public names that users do not call. A new door needs a
line in `good` for each required argument whose name is new.
"""
