"""Names and values that generated documents are made of, and which data split each belongs to.

A word belongs to exactly one split, decided by a hash of the word itself: whatever is generated later, by whomever, the
splits cannot overlap. Half of the words are everyday ones, half are made of syllables, so that a reader must read them
and cannot remember them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

__all__ = ["ADJECTIVES", "KINDS", "NOUNS", "SPLITS", "check_split", "look_alike", "person", "split_of", "value"]

SPLITS = ("train", "validation", "test")
_SHARE = (0.8, 0.1, 0.1)
_TRIES = 40

# What facts are about: a noun and a kind make an attribute, such as "badge code". The same in every split: they are
# the language, not the content.
NOUNS = (
    "badge", "boat", "club", "desk", "file", "flight", "garden", "gate", "hotel", "library", "locker", "office",
    "order", "parcel", "phone", "project", "school", "server", "studio", "tax", "ticket", "train", "travel", "vault",
)  # fmt: skip
KINDS = ("code", "number", "city", "date", "key", "price", "time", "room", "street", "note")
ADJECTIVES = (
    "blue", "bright", "broken", "clean", "cold", "empty", "gray", "green", "heavy", "large", "light", "narrow", "new",
    "old", "open", "plain", "quiet", "red", "round", "silver", "small", "soft", "tall", "warm", "white", "wide",
    "wooden", "yellow",
)  # fmt: skip
_NOTE_VERBS = (
    "bring", "carry", "check", "clean", "close", "count", "find", "keep", "lock", "move", "open", "paint", "read",
    "return", "send", "sign", "store", "wash", "watch", "write",
)  # fmt: skip
_NOTE_THINGS = (
    "bag", "bell", "book", "bottle", "box", "camera", "card", "chair", "clock", "coat", "cup", "door", "engine",
    "fence", "floor", "glass", "hall", "hammer", "kettle", "ladder", "lamp", "letter", "list", "map", "mirror",
    "pipe", "radio", "roof", "rope", "shelf", "table", "tent", "wall", "wheel", "window",
)  # fmt: skip
_NOTE_PLACES = ("at home", "at noon", "by hand", "by train", "for Anna", "in spring", "on Monday", "with care")
_STREETS = ("Lane", "Road", "Street", "Square", "Way", "Hill")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_FIRST = (
    "Ada", "Alan", "Alice", "Amir", "Ana", "Anders", "Anna", "Anton", "Arun", "Astrid", "Ben", "Bella", "Boris",
    "Bruno", "Carla", "Cecil", "Clara", "Conrad", "Dana", "David", "Diego", "Dora", "Edgar", "Elena", "Elias", "Emma",
    "Erik", "Esther", "Eva", "Farid", "Felix", "Fiona", "Frank", "Freya", "Gabriel", "George", "Greta", "Hana",
    "Hannah", "Hugo", "Ida", "Igor", "Ines", "Iris", "Ivan", "Jack", "Jana", "Jonas", "Josef", "Julia", "Karl",
    "Kate", "Kenji", "Lara", "Lars", "Laura", "Leila", "Leo", "Lina", "Lucas", "Lucy", "Magnus", "Maria", "Marta",
    "Martin", "Maya", "Mia", "Miguel", "Milan", "Mina", "Nadia", "Nina", "Noah", "Nora", "Olaf", "Oliver", "Olga",
    "Omar", "Oscar", "Paula", "Pavel", "Peter", "Petra", "Quinn", "Rachel", "Ravi", "Rita", "Robin", "Rosa", "Ruben",
    "Ruth", "Samir", "Sara", "Selma", "Simon", "Sofia", "Stefan", "Sven", "Tara", "Thomas", "Tina", "Tove", "Uma",
    "Ursula", "Vera", "Victor", "Viola", "Walter", "Wanda", "Xenia", "Yara", "Yusuf", "Zara", "Zoe",
)  # fmt: skip
_LAST = (
    "Abel", "Adler", "Albrecht", "Alvarez", "Andersen", "Bauer", "Becker", "Bell", "Berg", "Bianchi", "Blake",
    "Brandt", "Brook", "Carter", "Castro", "Chen", "Clark", "Costa", "Cruz", "Dahl", "Dean", "Diaz", "Dorn", "Ekman",
    "Ellis", "Engel", "Falk", "Farrell", "Fischer", "Flores", "Ford", "Frost", "Garcia", "Gold", "Grant", "Gray",
    "Haas", "Hansen", "Hart", "Hayes", "Heller", "Holm", "Horn", "Hughes", "Ivanov", "Jansen", "Jensen", "Kaya",
    "Keller", "Khan", "Klein", "Koch", "Kovac", "Kraus", "Lane", "Larsen", "Leclerc", "Lind", "Lopez", "Lund",
    "Marsh", "Mason", "Meyer", "Miller", "Moreau", "Morris", "Nagy", "Nash", "Nielsen", "Novak", "Olsen", "Ortiz",
    "Palmer", "Park", "Patel", "Pereira", "Petrov", "Price", "Quist", "Ramos", "Rao", "Reyes", "Richter", "Rossi",
    "Roth", "Sato", "Schmidt", "Silva", "Simic", "Singh", "Sommer", "Steen", "Stone", "Suzuki", "Tanaka", "Torres",
    "Tran", "Vance", "Vargas", "Vogel", "Voss", "Wagner", "Walsh", "Weber", "West", "Winter", "Wolf", "Yilmaz",
    "Young", "Zeller", "Ziegler",
)  # fmt: skip
_CITIES = (
    "Aarhus", "Accra", "Amman", "Antwerp", "Athens", "Baku", "Basel", "Bergen", "Berlin", "Bern", "Bilbao", "Bogota",
    "Bonn", "Boston", "Bremen", "Brno", "Cairo", "Cardiff", "Chicago", "Cork", "Dakar", "Dallas", "Delhi", "Denver",
    "Dover", "Dresden", "Dublin", "Essen", "Florence", "Galway", "Geneva", "Genoa", "Ghent", "Graz", "Hamburg",
    "Hanoi", "Havana", "Helsinki", "Izmir", "Jena", "Kiel", "Kyoto", "Lagos", "Leeds", "Leipzig", "Lille", "Lima",
    "Linz", "Lisbon", "London", "Lyon", "Madrid", "Malmo", "Manila", "Milan", "Miami", "Minsk", "Munich", "Nairobi",
    "Naples", "Nice", "Odessa", "Oran", "Osaka", "Oslo", "Oulu", "Oxford", "Padua", "Paris", "Perth", "Pisa", "Porto",
    "Prague", "Quito", "Reno", "Riga", "Rome", "Rotterdam", "Salem", "Seoul", "Seville", "Sofia", "Split", "Tallinn",
    "Tampere", "Tokyo", "Toronto", "Trier", "Tunis", "Turin", "Turku", "Utrecht", "Vienna", "Vilnius", "Warsaw",
    "Weimar", "York", "Zagreb", "Zurich",
)  # fmt: skip
_ONSETS = (
    *("b", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "qu"),
    *("r", "s", "sh", "sk", "sl", "st", "t", "th", "tr", "v", "w", "y", "z", ""),
)
_NUCLEI = ("a", "a", "e", "e", "i", "i", "o", "o", "u", "ai", "ea", "ee", "ia", "oa", "ou", "y")
_CODAS = (
    "",
    "",
    "",
    "b",
    "ck",
    "d",
    "f",
    "g",
    "k",
    "l",
    "ld",
    "m",
    "n",
    "nd",
    "p",
    "r",
    "rt",
    "s",
    "sk",
    "t",
    "th",
    "v",
    "x",
    "z",
)


def split_of(word: str) -> str:
    """The split that a name, value or wording belongs to."""
    point = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") / 2**32
    return SPLITS[0] if point < _SHARE[0] else SPLITS[1] if point < _SHARE[0] + _SHARE[1] else SPLITS[2]


def check_split(split: str) -> None:
    """Raise ValueError unless ``split`` is one of :data:`SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")


def _draw(split: str, make: Callable[[], str]) -> str:
    """The first of ``make``'s words that belongs to ``split``."""
    while True:
        word = make()
        if split_of(word) == split:
            return word


def _invented(rng: random.Random, low: int, high: int) -> str:
    """A pronounceable word of ``low`` to ``high`` syllables, at least three letters."""
    while True:
        word = "".join(rng.choice(_ONSETS) + rng.choice(_NUCLEI) for _ in range(rng.randint(low, high))) + rng.choice(
            _CODAS
        )
        if len(word) >= 3:
            return word


def _name_part(rng: random.Random, split: str, known: tuple[str, ...]) -> str:
    def make() -> str:
        return rng.choice(known) if rng.random() < 0.5 else _invented(rng, 1, 2).capitalize()

    return _draw(split, make)


def person(rng: random.Random, split: str) -> str:
    """A name of one or two words; each word belongs to ``split``."""
    check_split(split)
    first = _name_part(rng, split, _FIRST)
    return first if rng.random() < 0.12 else f"{first} {_name_part(rng, split, _LAST)}"


def value(rng: random.Random, split: str, kind: str) -> str:
    """A value of one of :data:`KINDS`, one to six words, as a whole belonging to ``split``."""
    check_split(split)
    return _draw(split, lambda: _value(rng, kind))


def _value(rng: random.Random, kind: str) -> str:
    if kind == "code":
        if rng.random() < 0.6:
            return f"{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}-{rng.randint(10, 9999)}"
        return "".join(rng.choice(_LETTERS + "0123456789") for _ in range(rng.randint(4, 6)))
    if kind == "number":
        return str(rng.randint(10 ** rng.randint(1, 4), 999_999))
    if kind == "city":
        return rng.choice(_CITIES) if rng.random() < 0.5 else _invented(rng, 2, 3).capitalize()
    if kind == "date":
        return f"{rng.randint(1, 28)} {rng.choice(_MONTHS)} {rng.randint(1950, 2049)}"
    if kind == "key":
        return _invented(rng, 2, 3)
    if kind == "price":
        return f"${rng.randint(1, 999)}.{rng.randint(0, 99):02d}"
    if kind == "time":
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind == "room":
        return f"{rng.choice(_LETTERS)}{rng.randint(10, 999)}"
    if kind == "street":
        name = rng.choice(_LAST) if rng.random() < 0.3 else _invented(rng, 1, 2).capitalize()
        return f"{rng.randint(1, 199)} {name} {rng.choice(_STREETS)}"
    note = f"{rng.choice(_NOTE_VERBS)} the {rng.choice(ADJECTIVES)} {rng.choice(_NOTE_THINGS)}"
    return note if rng.random() < 0.6 else f"{note} {rng.choice(_NOTE_PLACES)}"


def look_alike(rng: random.Random, split: str, word: str, *, name: bool = False) -> str | None:
    """``word`` with one letter or digit replaced by another of its sort.

    It belongs to ``split``: a name word by word, a value as a whole. None where chance finds none, for the held-out
    splits have few.
    """
    places = [i for i, character in enumerate(word) if character.isalnum()]
    for _ in range(_TRIES):
        place = rng.choice(places)
        old = word[place]
        pool = "0123456789" if old.isdigit() else "abcdefghiklmnoprstuvwyz"
        new = rng.choice((pool.upper() if old.isupper() else pool).replace(old, ""))
        changed = word[:place] + new + word[place + 1 :]
        if all(split_of(part) == split for part in (changed.split(" ") if name else [changed])):
            return changed
    return None
