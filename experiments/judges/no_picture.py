"""Answers that say that no picture arrived: a sign of an endpoint or a server that drops pictures.

The patterns are from general knowledge, in English. Of 2,800 answers about pictures that models had seen (MSTS) they
match one.
"""

import re

_PICTURE = r"(images?|pictures?|photos?|photographs?)"
_CANNOT = r"\b(don['’]?t|do not|can['’]?t|cannot|can not|unable to|not able to) (\w+ly )?"
_DID_NOT = r"\b(haven['’]?t|have not|didn['’]?t|did not) (yet )?"
_GIVE = r"(provided?|attach(ed)?|upload(ed)?|shared?|sent|send|included?)"
_SAYS = re.compile(
    rf"{_CANNOT}(see|view|access|open|receive|process) ((an?|any|the|your|this|that|attached|actual) )*{_PICTURE}\b"
    rf"|\bno {_PICTURE}\b.{{0,30}}\b(attached|provided|included|uploaded|shared|here)\b"
    rf"|{_DID_NOT}{_GIVE} (an?|any|the) {_PICTURE}\b"
    rf"|\b{_PICTURE}\b.{{0,30}}\b(did(n['’]?t| not) come through|(is|are|be|was|were) missing)\b"
    rf"|\b{_PICTURE}\b.{{0,30}}\bnot (been )?(attached|provided|uploaded|received)\b"
    rf"|\b(don['’]?t|do not) have (access to|the ability to (see|view|process)) {_PICTURE}\b"
    r"|\btext[- ](based|only) (ai|model|assistant)\b",
    re.IGNORECASE | re.DOTALL,
)


def says_no_picture(response: str) -> bool:
    """Return whether an answer says near its beginning that no picture arrived or that none can be seen."""
    return _SAYS.search(response[:300]) is not None
