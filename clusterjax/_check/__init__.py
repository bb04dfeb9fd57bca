"""The checks of all public arguments: each returns the argument as the package uses it, or raises a ValueError.

All messages have the form `NAME must ..., but ...; REMEDY.`: the name of the argument, its value, and the remedy. A
value is shown in a few characters, however large it is. For traced arrays only shapes and dtypes are checked, not
values.
"""

from ._arrays import (
    as_numbers as as_numbers,
    check_array as check_array,
    check_fits as check_fits,
    check_host_array as check_host_array,
    check_rank as check_rank,
    check_scalar as check_scalar,
    check_tokens as check_tokens,
)
from ._numbers import check_integer as check_integer, check_number as check_number
from ._objects import (
    call_traced as call_traced,
    check_args as check_args,
    check_callable as check_callable,
    check_choice as check_choice,
    check_concrete as check_concrete,
    check_flag as check_flag,
    check_float_dtype as check_float_dtype,
    check_instance as check_instance,
    check_key as check_key,
    check_path as check_path,
    check_say as check_say,
    check_sequence as check_sequence,
    check_text as check_text,
    named_by as named_by,
)
from ._room import MOST_ENTRIES as MOST_ENTRIES, check_room as check_room, memory_room as memory_room
from ._words import PAIRS as PAIRS, refusal as refusal, shown as shown
