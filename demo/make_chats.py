"""Write the demo's two chat sets: `python demo/make_chats.py` makes them again, byte for byte.

OUT  demo/chats_sharegpt.jsonl   260 rows: conversations (from, value) and tools; 50 rows call tools
     demo/chats_messages.jsonl   160 rows: messages (role, content); 40 rows reason in <think> tags

Every answer is computed here, or stands in a table below. Needs nothing but the standard library.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path
from random import Random

SEED = 20240517
# LLaMA-Factory keeps one observation a turn and joins the results of parallel calls like this.
BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"


@dataclass(frozen=True)
class Task:
    """A question, its answer in a sentence, the bare result, and the working if there is one."""

    question: str
    answer: str
    result: str
    working: str = ""


@dataclass(frozen=True)
class Turn:
    """One turn of a dialogue; `role` is one of system, user, assistant, call, result."""

    role: str
    text: str


@dataclass(frozen=True)
class Dialogue:
    turns: tuple[Turn, ...]
    tools: tuple[dict, ...] = ()

    @property
    def question(self) -> str:
        return next(turn.text for turn in self.turns if turn.role == "user")


# A family makes the tasks of one dialogue: the first stands alone, later ones may refer back to it.
Family = Callable[[Random, int], list[Task]]

# Numbers and units -------------------------------------------------------------------------------

UNITS = [  # one of (singular, plural) is exactly so many of the last
    ("mile", "miles", "1.609344", "kilometres"),
    ("nautical mile", "nautical miles", "1.852", "kilometres"),
    ("foot", "feet", "0.3048", "metres"),
    ("inch", "inches", "2.54", "centimetres"),
    ("pound", "pounds", "0.45359237", "kilograms"),
    ("ounce", "ounces", "28.349523125", "grams"),
    ("US gallon", "US gallons", "3.785411784", "litres"),
    ("hour", "hours", "60", "minutes"),
    ("week", "weeks", "168", "hours"),
    ("dozen", "dozen", "12", "pieces"),
]


def rounded(value: Decimal) -> str:
    """`value` with at most two decimals, halves rounded up."""
    cents = value.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return str(cents.quantize(Decimal(1)) if cents == cents.to_integral() else cents)


def convert_units(rng: Random, turns: int) -> list[Task]:
    one, many, factor, unit = rng.choice(UNITS)
    tasks = []
    for count in rng.sample(range(2, 40), turns):
        exact = count * Decimal(factor)
        result = f"{rounded(exact)} {unit}"
        about = "" if Decimal(rounded(exact)) == exact else "about "
        ending = f", which rounds to {rounded(exact)}" if about else ""
        tasks.append(
            Task(
                rng.choice(
                    [
                        f"How many {unit} are {count} {many}?",
                        f"Convert {count} {many} to {unit}.",
                        f"What is {count} {many} in {unit}?",
                    ]
                )
                if not tasks
                else f"And {count} {many}?",
                f"{count} {many} are {about}{result}.",
                result,
                f"One {one} is {factor} {unit}, so {count} times {factor} is {exact}{ending}.",
            )
        )
    return tasks


def convert_temperatures(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for celsius in rng.sample(range(-20, 105, 5), turns):
        fahrenheit = celsius * 9 // 5 + 32
        tasks.append(
            Task(
                f"What is {celsius} °C in Fahrenheit?" if not tasks else f"And {celsius} °C?",
                f"{celsius} °C is {fahrenheit} °F.",
                f"{fahrenheit} °F",
                f"Multiply by 9/5 and add 32: {celsius} * 9/5 = {celsius * 9 // 5}, "
                f"and {celsius * 9 // 5} + 32 = {fahrenheit}.",
            )
        )
    return tasks


def convert_bases(rng: Random, turns: int) -> list[Task]:
    base, digits = rng.choice([("binary", "b"), ("hexadecimal", "x"), ("octal", "o")])
    divisor = {"b": 2, "x": 16, "o": 8}[digits]
    tasks = []
    for number in rng.sample(range(9, 200), turns):
        written = format(number, digits)
        powers = [
            f"{int(digit, 16)} * {divisor**place}"
            for place, digit in enumerate(reversed(written))
            if digit != "0"
        ]
        tasks.append(
            Task(
                f"Write {number} in {base}." if not tasks else f"And {number}?",
                f"{number} in {base} is {written}.",
                written,
                f"{number} = {' + '.join(reversed(powers))}, so the digits are {written}.",
            )
        )
    return tasks


def to_roman(number: int) -> str:
    """`number` (1 to 3999) in Roman numerals."""
    ones = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
    shift = [str.maketrans("", ""), str.maketrans("IVX", "XLC"), str.maketrans("IVX", "CDM")]
    thousands, rest = divmod(number, 1000)
    places = reversed(list(enumerate(reversed(f"{rest:03d}"))))
    return "M" * thousands + "".join(ones[int(d)].translate(shift[place]) for place, d in places)


def write_roman(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for number in rng.sample(range(4, 2100), turns):
        numeral = to_roman(number)
        parts = [int(d) * 10**place for place, d in enumerate(reversed(str(number))) if d != "0"]
        pieces = ", ".join(f"{part} is {to_roman(part)}" for part in reversed(parts))
        tasks.append(
            Task(
                f"Write {number} as a Roman numeral." if not tasks else f"And {number}?",
                f"{number} is {numeral} in Roman numerals.",
                numeral,
                f"{pieces}; put together that is {numeral}." if len(parts) > 1 else f"{pieces}.",
            )
        )
    return tasks


THINGS = ["apples", "pencils", "stamps", "marbles", "postcards", "buttons", "coins", "tickets"]
GOODS = ["lamp", "jacket", "kettle", "backpack", "clock", "chair", "bicycle bell", "notebook"]


def multiply(rng: Random) -> Task:
    a, b = rng.randrange(12, 60), rng.randrange(11, 30)
    tens, ones = b // 10 * 10, b % 10
    split = f"{a} * {tens} = {a * tens} and {a} * {ones} = {a * ones}; together {a * b}."
    return Task(
        f"What is {a} times {b}?",
        f"{a} times {b} is {a * b}.",
        str(a * b),
        split if ones else f"{a} * {b // 10} = {a * b // 10}, and ten times that is {a * b}.",
    )


def take_discount(rng: Random) -> Task:
    good, price = rng.choice(GOODS), rng.randrange(20, 200, 20)
    percent = rng.choice([5, 10, 15, 20, 25, 30])
    saved = price * percent // 100
    return Task(
        f"A {good} costs {price} euros and is reduced by {percent}%. What does it cost now?",
        f"The {good} now costs {price - saved} euros.",
        f"{price - saved} euros",
        f"{percent}% of {price} is {saved}, and {price} - {saved} = {price - saved}.",
    )


def share_equally(rng: Random) -> Task:
    people, thing = rng.randrange(3, 9), rng.choice(THINGS)
    each, left = rng.randrange(4, 15), rng.randrange(1, people)
    total = people * each + left
    return Task(
        f"{people} children share {total} {thing} equally. How many does each get, "
        "and how many are left?",
        f"Each child gets {each} {thing}, and {left} {'is' if left == 1 else 'are'} left.",
        f"{each} each, {left} left",
        f"{people} * {each} = {people * each}, and {total} - {people * each} = {left}.",
    )


def average(rng: Random) -> Task:
    a, b, mean = rng.randrange(5, 40), rng.randrange(5, 40), rng.randrange(30, 50)
    c = 3 * mean - a - b
    return Task(
        f"What is the average of {a}, {b} and {c}?",
        f"The average of {a}, {b} and {c} is {mean}.",
        str(mean),
        f"{a} + {b} + {c} = {3 * mean}, and {3 * mean} divided by 3 is {mean}.",
    )


def measure_rectangle(rng: Random) -> Task:
    long, wide = rng.randrange(8, 30), rng.randrange(3, 8)
    return Task(
        f"A garden is {long} m long and {wide} m wide. How long is the fence around it?",
        f"The fence is {2 * (long + wide)} m long.",
        f"{2 * (long + wide)} m",
        f"All four sides: 2 * ({long} + {wide}) = 2 * {long + wide} = {2 * (long + wide)}.",
    )


def add_fractions(rng: Random) -> Task:
    a, b = Fraction(1, rng.randrange(2, 7)), Fraction(rng.randrange(2, 5), rng.randrange(5, 12))
    common = a.denominator * b.denominator
    upper = a.numerator * b.denominator, b.numerator * a.denominator
    total = a + b
    return Task(
        f"Add {a} and {b}.",
        f"{a} + {b} = {total}.",
        str(total),
        f"Over the common denominator {common}: {upper[0]}/{common} + {upper[1]}/{common} "
        f"= {sum(upper)}/{common}" + (f" = {total}." if total.denominator != common else "."),
    )


def calculate(rng: Random, turns: int) -> list[Task]:
    kinds = [multiply, take_discount, share_equally, average, measure_rectangle, add_fractions]
    if turns == 1:
        return [rng.choice(kinds)(rng)]
    tasks = [multiply(rng)]
    while len(tasks) < turns:
        before, number = int(tasks[-1].result), rng.randrange(11, 90)
        add = rng.random() < 0.5
        after, sign = (before + number, "+") if add else (before - number, "-")
        question = f"Now {'add' if add else 'subtract'} {number}."
        equation = f"{before} {sign} {number} = {after}."
        tasks.append(Task(question, equation, str(after), equation))
    return tasks


# Clock and calendar ------------------------------------------------------------------------------

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def clock(minutes: int) -> str:
    """The time of day so many minutes after midnight."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def arrive(rng: Random, turns: int) -> list[Task]:
    start, hours, minutes = rng.randrange(300, 900, 5), rng.randrange(1, 5), rng.randrange(5, 60, 5)
    what, leaves = rng.choice(
        [("train", "leaves"), ("bus", "leaves"), ("ferry", "sails"), ("film", "starts")]
    )
    end = "end" if what == "film" else "arrive"
    tasks = []
    for later in [0, *rng.sample(range(10, 60, 5), turns - 1)]:
        at = start + later
        there = at + 60 * hours + minutes
        first = (
            f"A {what} {leaves} at {clock(at)} and takes {hours} h {minutes} min. "
            f"When does it {end}?"
        )
        tasks.append(
            Task(
                first if not later else f"And if it {leaves} {later} minutes later than that?",
                f"{'It' if not later else 'Then it'} {end}s at {clock(there)}.",
                clock(there),
                f"{clock(at)} plus {hours} h is {clock(at + 60 * hours)}, "
                f"and {minutes} minutes more make it {clock(there)}.",
            )
        )
        start = at
    return tasks


def wait(rng: Random, turns: int) -> list[Task]:
    start = rng.randrange(400, 900, 5)
    tasks = []
    for span in sorted(rng.sample(range(35, 240, 5), turns)):
        end = start + span
        hours, minutes = divmod(span, 60)
        length = " ".join([f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (minutes > 0))
        tasks.append(
            Task(
                f"How long is it from {clock(start)} to {clock(end)}?"
                if not tasks
                else f"And to {clock(end)}?",
                f"From {clock(start)} to {clock(end)} it is {length}.",
                length,
                f"{clock(end)} is {end} minutes after midnight and {clock(start)} is {start}; "
                f"{end} - {start} = {span} minutes"
                + (f", that is {length}." if length != f"{span} min" else "."),
            )
        )
    return tasks


def zone(rng: Random, turns: int) -> list[Task]:
    utc = rng.randrange(360, 840, 15)
    tasks = []
    for offset in rng.sample([-6, -5, -4, -3, 1, 2, 3, 4, 5, 7, 8, 9], turns):
        there = clock(utc + 60 * offset)
        place = f"UTC{offset:+d}"
        tasks.append(
            Task(
                f"It is {clock(utc)} UTC. What time is it at {place}?"
                if not tasks
                else f"And at {place}?",
                f"At {place} it is {there}.",
                there,
                f"{place} is {abs(offset)} h {'behind' if offset < 0 else 'ahead of'} UTC, "
                f"so {clock(utc)} becomes {there}.",
            )
        )
    return tasks


def spoken(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def weeks(days: int) -> str:
    return f"{plural(days // 7, 'week')} and {plural(days % 7, 'day')}"


def find_weekday(rng: Random, turns: int) -> list[Task]:
    day = date(rng.randrange(1950, 2030), 1, 1) + timedelta(days=rng.randrange(365))
    name = DAYS[day.weekday()]
    first = date(day.year, 1, 1)
    passed = (day - first).days
    tasks = [
        Task(
            f"Which day of the week was {spoken(day)}?"
            if day.year < 2024
            else f"Which day of the week is {spoken(day)}?",
            f"{spoken(day)} {'was' if day.year < 2024 else 'is'} a {name}.",
            name,
            f"1 January {day.year} falls on a {DAYS[first.weekday()]}. {spoken(day)} comes "
            f"{passed} days later, which is {weeks(passed)}: a {name}.",
        )
    ]
    for number in rng.sample(range(8, 60), turns - 1):
        day += timedelta(days=number)
        name = DAYS[day.weekday()]
        tasks.append(
            Task(
                f"And {number} days after that?",
                f"{number} days after that it is {spoken(day)}, a {name}.",
                name,
                f"{number} days are {weeks(number)}; counting on from the last day gives a {name}.",
            )
        )
    return tasks


def count_days(rng: Random, turns: int) -> list[Task]:
    day = date(2023, 1, 1) + timedelta(days=rng.randrange(600))
    tasks = []
    for _ in range(turns):
        span = rng.randrange(12, 150)
        later = day + timedelta(days=span)
        tasks.append(
            Task(
                f"How many days are there from {spoken(day)} to {spoken(later)}?"
                if not tasks
                else f"And from there to {spoken(later)}?",
                f"There are {span} days from {spoken(day)} to {spoken(later)}.",
                f"{span} days",
                days_by_month(day, later),
            )
        )
        day = later
    return tasks


def days_by_month(day: date, later: date) -> str:
    """The working of a count of days, month by month."""
    pieces = []
    total = (later - day).days
    while (day.year, day.month) != (later.year, later.month):
        following = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        pieces.append(f"{(following - day).days} to 1 {MONTHS[following.month - 1]}")
        day = following
    if later != day:
        pieces.append(f"{(later - day).days} more")
    return f"{', then '.join(pieces)}: {total} days in all."


# Knowledge ---------------------------------------------------------------------------------------

CAPITALS = {
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Bulgaria": "Sofia",
    "Cameroon": "Yaoundé",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "Colombia": "Bogotá",
    "Costa Rica": "San José",
    "Croatia": "Zagreb",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Estonia": "Tallinn",
    "Ethiopia": "Addis Ababa",
    "Finland": "Helsinki",
    "France": "Paris",
    "Ghana": "Accra",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Iceland": "Reykjavík",
    "Iraq": "Baghdad",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Jordan": "Amman",
    "Kenya": "Nairobi",
    "Latvia": "Riga",
    "Lithuania": "Vilnius",
    "Moldova": "Chișinău",
    "Mongolia": "Ulaanbaatar",
    "Morocco": "Rabat",
    "Namibia": "Windhoek",
    "Nepal": "Kathmandu",
    "New Zealand": "Wellington",
    "Norway": "Oslo",
    "Oman": "Muscat",
    "Paraguay": "Asunción",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Romania": "Bucharest",
    "Senegal": "Dakar",
    "Slovakia": "Bratislava",
    "Slovenia": "Ljubljana",
    "South Korea": "Seoul",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Thailand": "Bangkok",
    "Togo": "Lomé",
    "Tunisia": "Tunis",
    "Uruguay": "Montevideo",
    "Vietnam": "Hanoi",
}


def name_capitals(rng: Random, turns: int) -> list[Task]:
    countries = rng.sample(sorted(CAPITALS), turns)
    country, capital = countries[0], CAPITALS[countries[0]]
    tasks = [
        rng.choice(
            [
                Task(
                    f"What is the capital of {country}?",
                    f"The capital of {country} is {capital}.",
                    capital,
                ),
                Task(
                    f"Which country has {capital} as its capital?",
                    f"{capital} is the capital of {country}.",
                    country,
                ),
            ]
        )
    ]
    for country in countries[1:]:
        capital = CAPITALS[country]
        tasks.append(
            Task(
                f"And what is the capital of {country}?",
                f"The capital of {country} is {capital}.",
                capital,
            )
        )
    return tasks


WORDS_ABROAD = {
    "thank you": {
        "German": "danke",
        "French": "merci",
        "Spanish": "gracias",
        "Polish": "dziękuję",
        "Czech": "děkuji",
        "Turkish": "teşekkür ederim",
        "Japanese": "ありがとう",
    },
    "water": {
        "German": "Wasser",
        "French": "eau",
        "Italian": "acqua",
        "Finnish": "vesi",
        "Japanese": "水",
        "Korean": "물",
        "Hindi": "पानी",
    },
    "bread": {
        "German": "Brot",
        "Spanish": "pan",
        "Polish": "chleb",
        "Czech": "chléb",
        "Turkish": "ekmek",
        "Japanese": "パン",
        "Korean": "빵",
    },
    "book": {
        "German": "Buch",
        "French": "livre",
        "Portuguese": "livro",
        "Polish": "książka",
        "Turkish": "kitap",
        "Japanese": "本",
        "Korean": "책",
    },
}


def translate(rng: Random, turns: int) -> list[Task]:
    word = rng.choice(sorted(WORDS_ABROAD))
    tasks = []
    for language in rng.sample(sorted(WORDS_ABROAD[word]), turns):
        foreign = WORDS_ABROAD[word][language]
        tasks.append(
            Task(
                f'What is the {language} word for "{word}"?'
                if not tasks
                else f"And in {language}?",
                f'In {language}, "{word}" is "{foreign}".',
                foreign,
            )
        )
    return tasks


UNKNOWABLE = [
    (
        "What did I have for breakfast today?",
        "I can't know that, since you haven't told me. If you do, I can help with a recipe.",
    ),
    (
        "What is my neighbour's dog called?",
        "I have no way to know the name of your neighbour's dog, and a guess would not help you.",
    ),
    (
        "Which lottery numbers will be drawn on Saturday?",
        "Nobody can know that in advance: the draw is random, so I would rather not guess.",
    ),
    (
        "How many books are on my shelf?",
        "I can't see your shelf. If you tell me the number of boards and of books on each, "
        "I can multiply.",
    ),
    (
        "Is my sister at home right now?",
        "I can't tell where your sister is. It would be best to call her.",
    ),
    (
        "What is the password of my router?",
        "I don't know it. It is often printed on a label on the back of the device.",
    ),
    (
        "What will the weather be like here on this day in ten years?",
        "A forecast reaches about ten days ahead, so I can't say anything about that day.",
    ),
    (
        "What am I thinking of?",
        "I can't read thoughts. If you give me some hints, I will gladly try a guessing game.",
    ),
    (
        "How old is my house?",
        "I don't know your house. The land registry or the building permit would show the year.",
    ),
    (
        "Who will win our school's chess tournament?",
        "I can't know that: it hasn't been played, and I don't know the players.",
    ),
    (
        "Where did I leave my keys?",
        "I can't know that. Try the last place where you were sure that you had them.",
    ),
    (
        "Did my parcel arrive this morning?",
        "I can't see your deliveries. The carrier's tracking page will tell you.",
    ),
    (
        "What grade will I get in the exam tomorrow?",
        "Nobody can know that yet. I can ask you some practice questions, if you like.",
    ),
    (
        "How much money is in my wallet?",
        "I can't see your wallet. If you list the notes and coins, I can add them up.",
    ),
    (
        "What colour is the car outside my window?",
        "I can't look outside your window, so I don't know.",
    ),
    (
        "Which of my plants needs water most?",
        "I can't see your plants. Put a finger into the soil: the driest pot comes first.",
    ),
]


def decline_to_guess(rng: Random, turns: int) -> list[Task]:
    return [Task(question, answer, answer) for question, answer in rng.sample(UNKNOWABLE, turns)]


# Words and text ----------------------------------------------------------------------------------

WORDS = [
    "banana",
    "strawberry",
    "mississippi",
    "committee",
    "parallel",
    "cinnamon",
    "bookkeeper",
    "lighthouse",
    "umbrella",
    "engineer",
    "telescope",
    "raspberry",
    "accordion",
    "balloon",
    "necessary",
]
LISTS = [
    ["pear", "fig", "apple", "quince"],
    ["violin", "harp", "oboe", "cello"],
    ["otter", "badger", "lynx", "hare"],
    ["Riga", "Oslo", "Bern", "Kyiv"],
    ["spoon", "kettle", "plate", "jug"],
    ["copper", "zinc", "iron", "lead"],
    ["maple", "birch", "oak", "larch"],
    ["scarf", "glove", "coat", "hat"],
]
SENTENCES = [
    "the meeting starts after lunch",
    "my bicycle has a flat tyre",
    "please close the window gently",
    "the old bridge crosses a river",
    "we planted three apple trees",
    "the library opens at nine",
    "a small boat lay at anchor",
    "she reads a chapter every night",
]
POLITE = {
    "Send me the file now.": "Could you please send me the file soon?",
    "You forgot the attachment again.": "I think the attachment is missing; could you add it?",
    "That is wrong.": "I am not sure that this is right; shall we check it together?",
    "Be quiet.": "Could you please speak a little more softly?",
    "Fix this bug today.": "Would you be able to fix this bug today, please?",
    "I don't have time for you.": "I am busy at the moment; may we talk later?",
    "Give me a window seat.": "May I have a window seat, please?",
    "Your report is too long.": "Could you please shorten the report a little?",
    "Nobody asked you.": "Thank you for the thought, but we have an answer already.",
    "Come here at once.": "Would you please come here for a moment?",
}


def count_letters(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for word in rng.sample(WORDS, turns):
        letter = rng.choice(sorted({letter for letter in word if word.count(letter) > 1}))
        count = word.count(letter)
        places = [str(i) for i, each in enumerate(word, 1) if each == letter]
        tasks.append(
            Task(
                f'How many times does the letter "{letter}" occur in "{word}"?'
                if not tasks
                else f'And "{letter}" in "{word}"?',
                f'The letter "{letter}" occurs {count} times in "{word}".',
                str(count),
                f'Spelled out, "{word}" is {"-".join(word)}. The letter "{letter}" stands at '
                f"the places {', '.join(places)}, so there are {count}.",
            )
        )
    return tasks


def sort_words(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for words in rng.sample(LISTS, turns):
        words = rng.sample(words, len(words))
        ordered = ", ".join(sorted(words))
        tasks.append(
            Task(
                f"Sort these words alphabetically: {', '.join(words)}."
                if not tasks
                else f"And these: {', '.join(words)}.",
                f"In alphabetical order: {ordered}.",
                ordered,
            )
        )
    return tasks


def list_items(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for words in rng.sample(LISTS, turns):
        words = rng.sample(words, 3)
        bullets = "\n".join(f"- {word}" for word in words)
        task = f"Make a bulleted list of {words[0]}, {words[1]} and {words[2]}."
        tasks.append(Task(task, bullets, bullets))
    return tasks


def change_sentence(rng: Random, turns: int) -> list[Task]:
    sentence = rng.choice(SENTENCES)
    changes = [
        ("Write this in capital letters", sentence.upper()),
        ("Put the words of this in reverse order", " ".join(reversed(sentence.split()))),
        ("Write this with a capital and a full stop", sentence.capitalize() + "."),
        ("Join the words of this with underscores", sentence.replace(" ", "_")),
        ("Give the first letter of each word of this", "".join(w[0] for w in sentence.split())),
        ("Capitalise each word of this", sentence.title()),
    ]
    tasks = []
    for request, changed in rng.sample(changes, turns):
        question = f"{request}: {sentence}" if not tasks else f"{request}, the first version."
        tasks.append(Task(question, changed, changed))
    return tasks


def be_polite(rng: Random, turns: int) -> list[Task]:
    return [
        Task(f'Say this more politely: "{rude}"', POLITE[rude], POLITE[rude])
        for rude in rng.sample(sorted(POLITE), turns)
    ]


def extract_json(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for good in rng.sample(GOODS, turns):
        fields = {
            "item": good,
            "colour": rng.choice(["red", "green", "blue", "white"]),
            "price": rng.randrange(5, 90),
            "in_stock": rng.random() < 0.5,
        }
        line = json.dumps(fields)
        state = "in stock" if fields["in_stock"] else "sold out"
        tasks.append(
            Task(
                "Turn this into JSON with the keys item, colour, price and in_stock: "
                f"{good}, {fields['colour']}, {fields['price']} euros, {state}.",
                line,
                line,
            )
        )
    return tasks


# Code --------------------------------------------------------------------------------------------

EXPRESSIONS = {
    "sum(range(5))": "range(5) gives 0, 1, 2, 3 and 4, and their sum is 10.",
    "len('hello world')": "Both words have five letters, and the space counts as one more: 11.",
    "7 // 2": "// divides and rounds down, and 3.5 rounded down is 3.",
    "-7 // 2": "// rounds towards minus infinity, and -3.5 becomes -4.",
    "7 % 3": "3 goes into 7 twice, which leaves 1.",
    "'abc'[::-1]": "A step of -1 walks through the string backwards.",
    "[x * x for x in range(4)]": "x runs from 0 to 3, and each is squared.",
    "{x: x ** 2 for x in (1, 2)}": "The comprehension maps 1 to 1 and 2 to 4.",
    "sorted({3, 1, 2})": "sorted takes any iterable and returns a list in ascending order.",
    "'a,b,,c'.split(',')": "split with a separator keeps the empty piece between two commas.",
    "bool([])": "An empty list counts as false.",
    "bool('False')": "Any string that is not empty counts as true, whatever it says.",
    "2 ** 10": "2 to the power of 10 is 1024.",
    "max('pear', 'fig', key=len)": "With key=len the longer word wins, and pear has four letters.",
    "'{:.2f}'.format(3.14159)": "The format .2f keeps two decimals.",
    "f'{7:03d}'": "The format 03d pads with zeros to three digits.",
    "'-'.join('abc')": "join puts the separator between the letters.",
    "list(zip([1, 2], 'ab'))": "zip pairs the first with the first and the second with the second.",
    "[1, 2, 3][-1]": "The index -1 means the last element.",
    "'banana'.replace('a', 'o', 2)": "The third argument limits the replacement to the first two.",
    "any(n > 3 for n in [1, 2, 5])": "5 is greater than 3, and one such number is enough.",
    "all(n > 3 for n in [])": "There is no number that breaks the condition.",
    "{'a': 1}.get('b', 0)": "The key b is missing, so get returns the default 0.",
    "{**{'a': 1}, 'a': 2}": "The later value for the same key wins.",
    "round(2.5)": "Python rounds halves to the even neighbour, which is 2.",
    "'x' * 3": "Multiplying a string repeats it.",
    "int('ff', 16)": "ff in base 16 is 15 * 16 + 15 = 255.",
    "'Hello'.swapcase()": "Capital letters become small ones and the other way round.",
    "[i for i in range(10) if i % 3 == 0]": "The numbers below 10 that 3 divides are kept.",
    "len({'a', 'b', 'a'})": "A set keeps each element once, so there are two.",
}
SNIPPETS = {
    "Write a C function that returns the larger of two ints.": (
        "int larger(int a, int b) {\n    return a > b ? a : b;\n}"
    ),
    "Write a JavaScript function that greets a name with a template string.": (
        "function greet(name) {\n  return `Hello, ${name}!`;\n}"
    ),
    "How do I write a Python dictionary that maps a to 1 and b to 2?": '{"a": 1, "b": 2}',
    "Write a shell loop that prints the names of all .txt files.": (
        'for file in *.txt; do\n  echo "$file"\ndone'
    ),
    "Write a Jinja line that prints the variable title in an h1 tag.": "<h1>{{ title }}</h1>",
    "Write a Python function that says whether a number is even.": (
        "def is_even(number):\n    return number % 2 == 0"
    ),
    "Write an SQL query that counts the rows of the table orders.": "SELECT COUNT(*) FROM orders;",
    "Write a Rust function that doubles an i32.": "fn double(x: i32) -> i32 {\n    x * 2\n}",
    "Give me a regular expression that matches exactly four digits.": r"^\d{4}$",
    "How do I make a Python set of the squares of 1 to 3?": "{n * n for n in range(1, 4)}",
}


def evaluate(rng: Random, turns: int) -> list[Task]:
    tasks = []
    for expression in rng.sample(sorted(EXPRESSIONS), turns):
        # The expressions are the constants above.
        shown = str(eval(expression))
        tasks.append(
            Task(
                f"What does `print({expression})` show in Python?"
                if not tasks
                else f"And `print({expression})`?",
                f"It shows `{shown}`.",
                shown,
                EXPRESSIONS[expression],
            )
        )
    return tasks


def write_code(rng: Random, turns: int) -> list[Task]:
    return [
        Task(request, f"```\n{SNIPPETS[request]}\n```", SNIPPETS[request])
        for request in rng.sample(sorted(SNIPPETS), turns)
    ]


# Tools -------------------------------------------------------------------------------------------


def schema(name: str, description: str, *arguments: str) -> dict:
    """A tool's JSON schema; all its arguments are strings and required."""
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": description, "parameters": parameters}


WEATHER = schema("get_weather", "Weather in a city now", "city")
STOCK = schema("count_stock", "Pieces of an item in the warehouse", "item")
CALCULATOR = schema("calculate", "Value of an arithmetic expression", "expression")
PYTHON = schema("run_python", "What a Python expression evaluates to", "code")

CITIES = [
    "Kraków",
    "São Paulo",
    "Zürich",
    "Malmö",
    "Łódź",
    "Córdoba",
    "Besançon",
    "Nairobi",
    "Dublin",
    "Osaka",
    "Split",
    "Quebec",
    "Ghent",
    "Trieste",
    "東京",
]
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy"]
PROGRAMS = {
    "Which squares below 50 are even?": "[n * n for n in range(8) if n % 2 == 0]",
    "How often does each letter occur in abba?": "{c: 'abba'.count(c) for c in 'ab'}",
    "Is 97 a prime number?": "all(97 % n for n in range(2, 10))",
    "What is 2 to the power of 30?": "2 ** 30",
    "Which numbers from 1 to 30 divide 30?": "[n for n in range(1, 31) if 30 % n == 0]",
    "What is the sum of the digits of 2 to the power of 20?": "sum(int(d) for d in str(2 ** 20))",
    "What is 1 + 2 + ... + 200?": "sum(range(1, 201))",
    "Which words does 'to be or not to be' use?": "sorted(set('to be or not to be'.split()))",
}


def call(*calls: tuple[str, dict]) -> Turn:
    """A turn with one tool call, or several at once."""
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return Turn("call", json.dumps(made[0] if len(made) == 1 else made, ensure_ascii=False))


def results(*values: object) -> Turn:
    """The turn that answers a call, one value a call."""
    return Turn("result", BETWEEN_RESULTS.join(json.dumps(v, ensure_ascii=False) for v in values))


def user(text: str) -> Turn:
    return Turn("user", text)


def assistant(text: str) -> Turn:
    return Turn("assistant", text)


def observe(rng: Random, city: str) -> dict:
    return {"city": city, "celsius": rng.randrange(-5, 33), "sky": rng.choice(SKIES)}


def tell_weather(seen: dict) -> str:
    return f"In {seen['city']} it is {seen['celsius']} °C and {seen['sky']}."


def ask_weather(rng: Random) -> Dialogue:
    city, other = rng.sample(CITIES, 2)
    questions = [
        f"What is the weather like in {city}?",
        f"How warm is it in {city} now?",
        f"Do you know the weather in {city}?",
    ]
    turns = [user(rng.choice(questions))]
    if rng.random() < 0.3:
        turns = [
            user(f"I am about to leave for {other}, but first: what is it like outside?"),
            assistant("In which city are you?"),
            user(f"In {city}."),
        ]
    seen = observe(rng, city)
    turns += [call(("get_weather", {"city": city})), results(seen), assistant(tell_weather(seen))]
    if rng.random() < 0.4:
        seen = observe(rng, other)
        turns += [
            user(f"And in {other}?"),
            call(("get_weather", {"city": other})),
            results(seen),
            assistant(tell_weather(seen)),
        ]
    return Dialogue(tuple(turns), (WEATHER,))


def compare_weather(rng: Random) -> Dialogue:
    one, two = (observe(rng, city) for city in rng.sample(CITIES, 2))
    if one["celsius"] == two["celsius"]:
        verdict = "It is equally warm in both"
    else:
        verdict = f"It is warmer in {max(one, two, key=lambda seen: seen['celsius'])['city']}"
    return Dialogue(
        (
            user(f"Is it warmer in {one['city']} or in {two['city']}?"),
            call(*(("get_weather", {"city": seen["city"]}) for seen in (one, two))),
            results(one, two),
            assistant(f"{verdict}: {one['celsius']} °C against {two['celsius']} °C."),
        ),
        (WEATHER,),
    )


def use_calculator(rng: Random) -> Dialogue:
    a, b, c = rng.randrange(120, 990), rng.randrange(12, 99), rng.randrange(100, 900)
    expression, value = rng.choice([(f"{a} * {b} + {c}", a * b + c), (f"{a} * {b}", a * b)])
    return Dialogue(
        (
            user(f"Please work out {expression}."),
            call(("calculate", {"expression": expression})),
            results({"value": value}),
            assistant(f"{expression} = {value}."),
        ),
        (CALCULATOR,),
    )


def value_stock(rng: Random) -> Dialogue:
    good, price, pieces = rng.choice(GOODS), rng.randrange(6, 60), rng.randrange(15, 300)
    product = f"{pieces} * {price}"
    return Dialogue(
        (
            user(f"What are all our {good}s worth at {price} euros each?"),
            call(("count_stock", {"item": good})),
            results({"item": good, "pieces": pieces}),
            call(("calculate", {"expression": product})),
            results({"value": pieces * price}),
            assistant(f"The {pieces} {good}s are worth {pieces * price} euros."),
        ),
        (STOCK, CALCULATOR),
    )


def run_program(rng: Random) -> Dialogue:
    question = rng.choice(sorted(PROGRAMS))
    # The programs are the constants above.
    shown = str(eval(PROGRAMS[question]))
    return Dialogue(
        (
            user(question),
            call(("run_python", {"code": PROGRAMS[question]})),
            results(shown),
            assistant(f"Python gives {shown} for `{PROGRAMS[question]}`."),
        ),
        (PYTHON,),
    )


# Dialogues ---------------------------------------------------------------------------------------

PLAIN_SYSTEMS = [
    "You are a helpful assistant.",
    "Answer in one or two plain sentences.",
    "You answer questions of all kinds.",
    "You are polite and exact.",
]
BRIEF_SYSTEMS = [
    "Answer with the result only.",
    "Reply with the bare answer, without a sentence.",
    "Be as brief as you can.",
]
TEACHER_SYSTEMS = [
    "You are a patient teacher: show the working, then the answer.",
    "Explain your step first and end with the answer.",
]
TOOL_SYSTEMS = [
    "Use the tools where they help.",
    "Look things up instead of guessing.",
]


def talk(rng: Random, family: Family) -> Dialogue:
    """A dialogue of one to three tasks, with or without a system prompt that its answers obey."""
    tasks = family(rng, rng.choice([1, 1, 1, 1, 1, 1, 2, 2, 3]))
    system, answers = "", [task.answer for task in tasks]
    manner = rng.choice(["none", "none", "none", "plain", "brief", "teacher"])
    if manner == "brief":
        system, answers = rng.choice(BRIEF_SYSTEMS), [task.result for task in tasks]
    elif manner == "teacher" and all(task.working for task in tasks):
        system = rng.choice(TEACHER_SYSTEMS)
        answers = [f"{task.working}\n{task.answer}" for task in tasks]
    elif manner == "plain":
        system = rng.choice(PLAIN_SYSTEMS)
    return converse(system, tasks, answers)


def reason(rng: Random, family: Family) -> Dialogue:
    """A dialogue of one or two tasks whose answers begin with the working, in <think> tags."""
    tasks = family(rng, rng.choice([1, 1, 1, 1, 2]))
    answers = [f"<think>\n{task.working}\n</think>\n\n{task.answer}" for task in tasks]
    return converse(rng.choice(["", "", "", *PLAIN_SYSTEMS[:2]]), tasks, answers)


def converse(system: str, tasks: list[Task], answers: list[str]) -> Dialogue:
    turns = [Turn("system", system)] if system else []
    for task, answer in zip(tasks, answers, strict=True):
        turns += [user(task.question), assistant(answer)]
    return Dialogue(tuple(turns))


def use_tools(rng: Random, make: Callable[[Random], Dialogue]) -> Dialogue:
    """A dialogue with tool calls, sometimes under a system prompt."""
    dialogue = make(rng)
    if rng.random() < 0.4:
        system = Turn("system", rng.choice(TOOL_SYSTEMS))
        dialogue = replace(dialogue, turns=(system, *dialogue.turns))
    return dialogue


def draw(rng: Random, make: Callable, subject: Callable, count: int, asked: set) -> Iterator:
    """`count` dialogues about `subject` whose first question has not been asked before."""
    while count:
        dialogue = make(rng, subject)
        if dialogue.question not in asked:
            asked.add(dialogue.question)
            count -= 1
            yield dialogue


# How many rows of each: the first number for the ShareGPT set, the second for the messages set.
TALKS = {
    convert_units: (22, 11),
    convert_temperatures: (6, 5),
    convert_bases: (8, 5),
    write_roman: (8, 5),
    calculate: (30, 18),
    arrive: (11, 6),
    wait: (8, 4),
    zone: (6, 4),
    find_weekday: (8, 5),
    count_days: (6, 4),
    name_capitals: (26, 14),
    translate: (10, 6),
    decline_to_guess: (8, 4),
    count_letters: (8, 4),
    sort_words: (5, 3),
    list_items: (4, 2),
    change_sentence: (7, 4),
    be_polite: (5, 3),
    extract_json: (5, 3),
    evaluate: (13, 7),
    write_code: (6, 3),
}
REASONINGS = {
    convert_units: 6,
    convert_temperatures: 2,
    convert_bases: 4,
    write_roman: 3,
    calculate: 7,
    arrive: 4,
    wait: 2,
    find_weekday: 3,
    count_days: 3,
    count_letters: 3,
    evaluate: 3,
}
TOOL_USES = {
    ask_weather: 16,
    compare_weather: 10,
    use_calculator: 10,
    value_stock: 8,
    run_program: 6,
}


def make_dialogues() -> tuple[list[Dialogue], list[Dialogue]]:
    """The dialogues of the ShareGPT set and of the messages set, each in a shuffled order."""
    rng, asked = Random(SEED), set()
    first = [
        *(d for family, (n, _) in TALKS.items() for d in draw(rng, talk, family, n, asked)),
        *(d for use, n in TOOL_USES.items() for d in draw(rng, use_tools, use, n, asked)),
    ]
    second = [
        *(d for family, (_, n) in TALKS.items() for d in draw(rng, talk, family, n, asked)),
        *(d for family, n in REASONINGS.items() for d in draw(rng, reason, family, n, asked)),
    ]
    rng.shuffle(first)
    rng.shuffle(second)
    return first, second


SHAREGPT_ROLES = {
    "system": "system",
    "user": "human",
    "assistant": "gpt",
    "call": "function_call",
    "result": "observation",
}


def to_sharegpt(dialogue: Dialogue) -> dict:
    """A row with `tools` as a JSON string.

    No tools is "", not "[]": LLaMA-Factory's own templates put an empty system turn for "[]".
    """
    conversations = [{"from": SHAREGPT_ROLES[t.role], "value": t.text} for t in dialogue.turns]
    tools = json.dumps(dialogue.tools, ensure_ascii=False) if dialogue.tools else ""
    return {"conversations": conversations, "tools": tools}


def to_messages(dialogue: Dialogue) -> dict:
    return {"messages": [{"role": turn.role, "content": turn.text} for turn in dialogue.turns]}


def write_rows(path: Path, rows: list[dict]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{path.name}: {len(rows)} rows")


def main() -> None:
    here = Path(__file__).parent
    first, second = make_dialogues()
    write_rows(here / "chats_sharegpt.jsonl", [to_sharegpt(dialogue) for dialogue in first])
    write_rows(here / "chats_messages.jsonl", [to_messages(dialogue) for dialogue in second])


if __name__ == "__main__":
    main()
