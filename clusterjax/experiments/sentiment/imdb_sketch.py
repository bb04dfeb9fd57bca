"""Whether reviews are the IMDb reviews of Maas et al., by what they say and not by the name of their file.

Each review is hashed with its label, letters and digits alone, so that mark-up, quotes and line ends do not count. The
64 smallest hashes of the published 50,000 are kept here: any 64 of them would do, and the smallest are a choice that
does not depend on the order of the file. Reviews are IMDb's if nearly all of these are among theirs and there are as
many different ones, within a hundredth.
"""

from hashlib import blake2b

from ...sentiment import Reviews


DIFFERENT = 49_575  # of the 50,000, the others are repeated
_LEAST, _SLACK = 60, 0.01
_OTHERS = bytes(byte for byte in range(128) if not chr(byte).isalnum())
_SMALLEST = frozenset("""
00019439f7709827 0001c458bc382872 0002de3d32ba3f20 0002dfc8da5e4ad6 000687f281fc7b73 0006e16d746f6e1c
0008148c72b49f71 0008494b17543ff0 0009416b0ca49bcf 000991bdc6dd30e4 000a31f0a3eef46a 000a431f12eff510
000b8c7c95cd49eb 000c4ab45942d269 000dbc718c8a0d2d 000ed5f4a1de7e38 00157f2262e89154 0018370141933079
0018e994fadc1ad9 001998c6209fb68d 001b8d293828d541 001fb7a1f589a6f2 00205d42cf080ed8 0022498959e971e4
002336075820d459 0023a46a4e43dbad 00248192adb20787 0024bba8501c8d04 002a65d270c113ee 002bd32965077db3
002c6d7daa398525 002c70ad09b3d240 002dacd317a7fbd1 002e969521a26e2e 002f23763ea1b04e 00307cf290f0bc7b
003142f486ed9923 00326e1eb1a41c75 00329deddb6b833f 00330b9e1cde240b 0033fae7ef1c05a2 0037406f56597407
00375246452612ea 0038e1952a1dcad6 003960e1b07d1d8f 003c3c3d4ad7681c 003cf3b4200648f4 003db6422a31174e
003fb7c040d95a48 00405cd052278e83 0041aa44a0c915fd 0041e64fa558a6d7 004206496636af02 0043e7868988df2d
004682c1939b8b17 0047182055bcc487 00499f87d48ab93b 0049cbaec3f1e060 004a30ab061ce959 004b360918eef5f9
005082f98ea030be 00508cf368fdc442 005159b004a23dc1 005198620b77cc06
""".split())  # fmt: skip


def hashes(reviews: Reviews) -> set[str]:
    """A hash of each different review with its label."""
    return {_hash(text, int(label)) for text, label in zip(reviews.texts, reviews.labels, strict=True)}


def is_imdb(reviews: Reviews) -> bool:
    """Whether these are the 50,000 labelled reviews, in any order and layout.

    ??? cite "Source"

        The reviews: Maas et al., *Learning word vectors for sentiment analysis* (ACL 2011).
    """
    # Before hashing: most files are of another size.
    if abs(len(reviews) / 50_000 - 1) > _SLACK:
        return False
    distinct = hashes(reviews)
    return len(_SMALLEST & distinct) >= _LEAST and abs(len(distinct) / DIFFERENT - 1) <= _SLACK


def _hash(text: str, label: int) -> str:
    # Mark-up, letters beyond ASCII, case and all signs do not count, as copies differ in these.
    plain = text.replace("<br />", " ").lower().encode("ascii", "ignore").translate(None, _OTHERS)
    # The label belongs to it: the same reviews with other labels are other data.
    return blake2b(b"%d %b" % (label, plain), digest_size=8).hexdigest()
