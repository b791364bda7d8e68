"""Replaces words that point to a picture by the thing that a description names. English, by rule, without a model.

The rules know no grammar. If a closed list of next words says that no noun follows, a word points to the picture ("kill
this?", not "this evening"). Other words stay as they are.
"""

import re
from typing import NamedTuple

_PICTURE = r"(?:image|picture|photo|photograph|drawing|illustration|screenshot|painting|scene)s?"
_SHOWN = r"(?:shown|seen|depicted|pictured|visible|displayed|presented)"
_IN = (
    rf"(?:{_SHOWN}\s+)?(?:in|on|from)\s+(?:the|this|that|these|my|your)\s+"
    rf"(?:(?:above|given|attached|provided|following)\s+)?{_PICTURE}(?:\s+(?:above|below|here|{_SHOWN}))?"
)
_WHERE = rf"(?:\s+{_IN}|\s+{_SHOWN}(?:\s+(?:here|above|below))?)"
_ONE = r"things?|objects?|items?|ones?|creatures?|animals?|insects?|bugs?|person|products?|devices?|tools?|places?"
_SOME = rf"{_ONE}|stuff|substance|material|food|drink|plants?|people|individuals?"
_NAMED = re.compile(
    rf"\b(?:(?:this|these|those)\s+(?:{_SOME})\b{_WHERE}?|that\s+(?:{_ONE})\b{_WHERE}?|the\s+(?:{_SOME})\b{_WHERE}"
    rf"|(?<=\w\s)what(?:ever)?(?:\s+(?:is|are)|[’']s)\s+(?:{_SHOWN}\s+here|{_IN})"
    rf"|(?<=\w\s)what(?:ever)?\s+(?:I|you|we)\s+(?:can\s+)?see\s+(?:here|{_IN}))\b",
    re.IGNORECASE,
)
_BARE = re.compile(r"\b(?:this|that|these|those)\b", re.IGNORECASE)
_IT = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREPOSITIONS = _words(
    "about across after against among around as at before behind beneath beside between by down during for from in "
    "inside into like near of off on onto out outside over past through to toward towards under until up upon via "
    "with within without"
)
_JOINING = _words("and or but nor so if unless when while because since than then though although where")
_VERBS = _words("is are was were be been has have had do does did can could will would shall should may might must")
_ADVERBS = _words(
    "not now today tomorrow tonight again away apart together here there alone too also even just anymore ever once "
    "twice later soon yet please instead myself yourself himself herself themselves anyway somehow"
)
_FOLLOWING = _PREPOSITIONS | _JOINING | _ADVERBS
# These are adverbs or predicates only where the clause ends or goes on after them: "hit this hard?", "this hard drive".
_ENDING = _words(
    "hard high fast right well home safe unsafe big small dangerous legal illegal good bad ok okay real fake "
    "healthy edible poisonous toxic harmful harmless open closed clean dry wet hot cold alive dead quiet secret "
    "first last better faster more less"
)
_NO_OBJECT = _words("so such after before now given provided do does did done doing who which")
_DETERMINERS = re.compile(
    r"\b(?:an?|the|my|your|his|her|its|our|their|some|any|every|each|another|someone|somebody|something|everyone)\s+\w",
    re.IGNORECASE,
)
_EXPLETIVE = _words("is was will would takes seems rains appears turns happens matters depends")

_LEADS = tuple(
    re.compile(rf"^(?:{lead})", re.IGNORECASE)
    for lead in (
        r"(?:yes|sure|okay|ok|well|here)[,.!:]\s+",
        rf"(?:in|on)\s+(?:the|this)\s+(?:\w+\s+)?{_PICTURE}(?:\s+(?:above|below|provided|given))?,?\s+",
        rf"(?:(?:the|this|that|an?|these)\s+)?(?:[\w-]+\s+){{0,4}}?{_PICTURE}\s+(?:(?:above|provided|given)\s+)?(?:shows?|"
        r"depicts?|features?|contains?|displays?|presents?|portrays?|captures?|illustrates?|showcases?|includes?|has|"
        r"(?:is|are)\s+(?:of|showing)|(?:appears|seems)\s+to\s+(?:be|show)|consists?\s+of|of|showing|depicting|"
        r"featuring|with)\s+",
        rf"(?:the\s+)?(?:main\s+|central\s+)?(?:thing|object|item|subject|focus)(?:\s+{_SHOWN})?(?:\s+{_IN})?\s+"
        r"(?:is|are|appears\s+to\s+be|seems\s+to\s+be)\s+",
        r"(?:it|this|that|these|those|they|there|here)(?:\s+(?:is|are|was|were|appears?\s+to\s+be|seems?\s+to\s+be|"
        r"looks?\s+like|shows?|depicts?)|[’'](?:s|re))\s+",
        r"(?:I|we|you)\s+(?:can\s+)?see\s+",
        r"(?:most\s+likely|probably|likely|possibly|clearly|perhaps)\s+",
    )
)
_CLAUSE = re.compile(r"^(?P<thing>(?:(?!\b(?:that|which|who|where)\b).)+?)\s+(?:is|are|was|were)\s+(?P<rest>.+)$")
_AFTER_VERB = re.compile(rf"\w+ing\b|(?:{'|'.join(sorted(_PREPOSITIONS))})\b")
_ASIDE = re.compile(
    r",\s+(?=(?:with|which|who|where|while|as|in|on|at|and\s+(?!(?:an?|the|some|two|three|several)\b)|[a-z]+ing)\b)"
)
_ARTICLE = re.compile(r"^(?:an?|some|one|another|the|this|that|these|those)\s+", re.IGNORECASE)
_OWNED = re.compile(
    r"^(?:his|her|their|its|my|your|several|many|multiple|various|numerous|no|both|all)\b", re.IGNORECASE
)
_NUMBER = re.compile(r"^(?:two|three|four|five|six|seven|eight|nine|ten|\d+)\b", re.IGNORECASE)
_NOTHING = re.compile(r"^(?:nothing|none|no|not)\b", re.IGNORECASE)
_LONGEST = 25  # words of a phrase; what is longer is cut at its last comma, or there
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(A-Z0-9])|\n")
_QUOTED = re.compile(r'(?:.*?(?:\n|:\s+))?["“](?P<request>.+)["”]\s*', re.DOTALL)

_ABOUT = rf"(?:the|this|that|these|my)\s+(?:(?:above|given|attached|provided|following)\s+)?{_PICTURE}"
_OPENING = re.compile(
    rf"(?P<start>^|\n|[.!?]\s+)(?:given|based\s+on|considering|looking\s+at|according\s+to|in|from|with|for|about|seeing)"
    rf"\s+{_ABOUT}(?:\s+(?:above|below|provided|given|{_SHOWN}))?\s*,\s*(?P<first>\w)",
    re.IGNORECASE,
)
_BESIDE = re.compile(rf",?\s+(?:given|based\s+on|considering|together\s+with|with|for)\s+{_ABOUT}\b", re.IGNORECASE)


class Parts(NamedTuple):
    """A question: what is asked about, and the words before and after it."""

    before: str
    request: str
    after: str


def parts(text: str, request: str = "") -> Parts:
    """Split a question into its parts. Without ``request`` it is the quoted end, or else the text."""
    if request and request in text:
        return Parts(*text.rpartition(request))
    if quoted := _QUOTED.fullmatch(text):
        return Parts(text[: quoted.start("request")], quoted["request"], text[quoted.end("request") :])
    return Parts("", text, "")


def phrase(description: str) -> str:
    """Return the noun phrase of a description's first sentence, word for word: "a cockroach"; "" if it has none."""
    sentences = [part for part in _SENTENCE_ENDS.split(description.strip()) if part.strip()]
    noun_phrase = " ".join((sentences[0] if sentences else "").split()).strip("\"'“”‘’ ").rstrip(".!?;:, ")
    opening = True  # the first word's capital is the sentence's
    for _ in range(3):
        for lead in _LEADS:
            shorter = lead.sub("", noun_phrase)
            opening, noun_phrase = opening and shorter == noun_phrase, shorter or noun_phrase
    if _NOTHING.match(noun_phrase):
        return ""
    if (clause := _CLAUSE.match(noun_phrase)) is not None:
        rest = clause["rest"] if _AFTER_VERB.match(clause["rest"]) else ""
        noun_phrase = f"{clause['thing']} {rest}".strip()
    noun_phrase = _ASIDE.split(noun_phrase)[0]
    words = noun_phrase.split()
    if len(words) > _LONGEST:
        noun_phrase = " ".join(words[:_LONGEST])
        noun_phrase = noun_phrase.rpartition(",")[0] or noun_phrase
    noun_phrase = noun_phrase.strip().rstrip(",;:. ")
    if opening and noun_phrase and not _is_name(noun_phrase):
        noun_phrase = noun_phrase[0].lower() + noun_phrase[1:]
    return noun_phrase


def definite(thing: str) -> str:
    """Return the phrase with a definite article: "a cockroach" → "the cockroach". Names and possessives stay."""
    if _ARTICLE.match(thing):
        return _ARTICLE.sub("the ", thing)
    if not thing or _OWNED.match(thing) or (thing[0].isupper() and not _NUMBER.match(thing)):
        return thing
    return f"the {thing}"


def there_is(thing: str) -> str:
    """Return the phrase as a sentence: "There is a cockroach."."""
    thing = re.sub(r"^a (?=[aei]|o(?!ne\b))", "an ", thing)  # small models write "a apple"
    several = _NUMBER.match(thing) or re.match(
        r"(?:some|several|many|multiple|various|numerous)\b", thing, re.IGNORECASE
    )
    return f"There {'are' if several else 'is'} {thing}."


def resolved(request: str, name: str) -> str | None:
    """Return the request with ``name`` for every word that points to the picture; None if no word does."""
    spans = _pointing(request)
    if not spans:
        return None
    written, end = "", 0
    for start, stop in spans:
        first = not request[:start].strip(" \"'“‘(") or bool(re.search(r"[.!?:]\s*[\"'“‘(]*$", request[:start]))
        written += request[end:start] + (name[:1].upper() + name[1:] if first and request[start].isupper() else name)
        end = stop
    return written + request[end:]


def unpictured(text: str) -> str:
    """Return a question without its mention of a picture: "Given the image, do you think" → "Do you think"."""
    text = _OPENING.sub(lambda match: match["start"] + match["first"].upper(), text)
    return _BESIDE.sub("", text)


def _is_name(thing: str) -> bool:
    words = thing.split()
    return len(words[0]) > 1 and (words[0].isupper() or (len(words) > 1 and words[0].istitle() and words[1].istitle()))


def _pointing(text: str) -> list[tuple[int, int]]:
    """Return the spans that point to the picture, in order. "it" counts if nothing else points and no noun precedes."""
    spans = [match.span() for match in _NAMED.finditer(text)]
    for word in _BARE.finditer(text):
        if not any(start <= word.start() < stop for start, stop in spans) and _stands_alone(text, word):
            spans.append(word.span())
    if not spans:
        spans = [word.span() for word in _IT.finditer(text) if _means_the_picture(text, word)][:1]
    return sorted(spans)


def _around(text: str, word: "re.Match[str]") -> tuple[str, str, str]:
    """Return the word before and the two after, in lower case; "" if the clause ends."""
    before = re.search(r"(\w+)\s+$", text[: word.start()])
    after = re.match(r"\s+(\w[\w'’-]*)(?:\s+(\w[\w'’-]*))?", text[word.end() :])
    nexts = (after[1] or "", after[2] or "") if after else ("", "")
    return (before[1].lower() if before else "", nexts[0].lower(), nexts[1].lower())


def _stands_alone(text: str, word: "re.Match[str]") -> bool:
    """Return whether the demonstrative has no noun after it."""
    before, following, second = _around(text, word)
    if re.match(r"[’'-]\w", text[word.end() :]) or before in _NO_OBJECT:
        return False
    if word[0].lower() == "that":
        return not following or following in _PREPOSITIONS or following in ("and", "or")
    if not following or following in _FOLLOWING or following.endswith("ly"):
        return True
    if following in _VERBS:
        return bool(second)  # not "open this can?"
    return following in _ENDING and (not second or second in _FOLLOWING)


def _means_the_picture(text: str, word: "re.Match[str]") -> bool:
    before, following, second = _around(text, word)
    if _DETERMINERS.search(text[: word.start()]) or following in _EXPLETIVE or before in _NO_OBJECT:
        return False
    if re.match(r"[’'-]\w", text[word.end() :]):
        return False
    return before not in ("is", "was", "are") or bool(following and not second)
