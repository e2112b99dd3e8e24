"""Thousands of distinct prompts without a network, for a target to answer: `python bench/prompts.py OUT.jsonl 16000`.

Built from word lists by patterns, so they are plain and somewhat alike; what a drafter learns is its target's answers.
Chat, code, math and summary, as the shipped sets that drafters are measured with (datasets/prompts/), of which none is
among these. The same number and seed give the same file.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "datasets" / "prompts"
SHARES = {"chat": 0.64, "code": 0.13, "math": 0.13, "summary": 0.10}


def _list(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split(";")]


THINGS = _list(
    """rainbows; earthquakes; volcanoes; glaciers; the moon; black holes; photosynthesis; gravity; magnets; electricity;
    batteries; solar panels; wind turbines; nuclear power; the internet; search engines; passwords; computer viruses;
    artificial intelligence; databases; vaccines; allergies; the heart; the immune system; sleep; dreams; memory; the
    human eye; muscles; vitamins; caffeine; sugar; bacteria; antibiotics; whales; bees; ants; migrating birds; owls;
    dogs; cats; horses; coral reefs; rainforests; deserts; rivers; clouds; lightning; hurricanes; snow; the ozone
    layer; climate change; recycling; compost; plastic; paper; glass; steel; concrete; bridges; tunnels; elevators;
    airplanes; submarines; bicycles; trains; electric cars; traffic lights; money; banks; taxes; insurance; interest
    rates; the stock market; supply and demand; democracy; elections; constitutions; human rights; the Roman Empire;
    ancient Egypt; the Middle Ages; the Renaissance; the industrial revolution; the printing press; the telephone;
    photography; cinema; jazz; classical music; opera; ballet; poetry; novels; fairy tales; myths; chess; football;
    tennis; marathons; yoga; meditation; tea; coffee; chocolate; bread; cheese; rice; spices; olive oil; salt; maps;
    calendars; clocks; languages; alphabets; sign language; universities; museums; libraries; prime numbers;
    probability; fractions; geometry; statistics; logarithms; atoms; molecules; DNA; evolution; fossils; dinosaurs"""
)
SKILLS = _list(
    """learning the guitar; learning the piano; singing in a choir; drawing portraits; painting with watercolours;
    taking better photographs; writing short stories; keeping a diary; learning Spanish; learning to swim; running five
    kilometres; lifting weights; stretching every day; cycling to work; climbing indoors; hiking in the mountains;
    camping with children; growing tomatoes; keeping house plants alive; pruning roses; baking bread; cooking for one;
    cooking for a large family; making soup; eating less meat; drinking more water; sleeping better; waking up early;
    meditating; managing stress; staying focused; planning the week; saving money; paying off debt; investing a small
    sum; writing a CV; preparing for an interview; asking for a raise; changing careers; working from home; leading a
    team; giving feedback; running a meeting; speaking in public; making small talk; making new friends; keeping in
    touch with old friends; settling an argument; apologising; saying no; raising a puppy; training a cat; travelling
    alone; packing light; travelling by train; moving to another city; decorating a small flat; cleaning quickly;
    sorting old papers; repairing a bicycle; painting a wall; sewing on a button; knitting a scarf; learning to
    program; building a website; using a spreadsheet; backing up photos; studying for exams; taking notes; reading
    faster; memorising vocabulary; teaching children to read; playing chess; crosswords; juggling; birdwatching"""
)
PROBLEMS = _list(
    """My dog barks at night; My phone battery is empty by noon; My plants have yellow leaves; My back hurts after work;
    My roommate never cleans; My boss writes to me at weekends; My child refuses to eat vegetables; My teenager is
    always online; My laptop has become slow; My sink is blocked; My bread does not rise; My neighbours are noisy; My
    bicycle chain keeps falling off; My garden is full of weeds; My windows are wet every morning; My essay is too
    long; My flat is too hot in summer; My flight was cancelled; My suitcase got lost; My friend has not answered for
    weeks; My presentation is tomorrow; My budget never lasts to the end of the month; My eyes are tired from the
    screen; My knees hurt when I run; My team misses every deadline; My wifi is slow in the bedroom; My clothes smell
    damp; My parents worry too much; My sister borrowed money; My cat wakes me at five; I cannot fall asleep; I forget
    names; I am always late; I get nervous on the phone; I feel lonely in a new city; I eat too many sweets; I have too
    many hobbies; I never finish books; I lose my keys; I spend too much time on my phone; I have to write a speech; I
    must choose between two jobs; I want to apologise to a friend; I want to adopt a dog; I need a present for my
    mother; I need a quick dinner for six; I have an exam in three days; I have to move in two weeks"""
)
SCENES = _list(
    """a lighthouse keeper; a lost umbrella; a train that never arrives; two brothers and a boat; a city under snow; a
    talking clock; a baker at dawn; a letter found in a wall; an old piano; the last day of summer; a dragon who likes
    books; a robot in a garden; a market in the rain; a school on an island; a village without a name; a fox and a
    hen; the first bus of the day; a forgotten birthday; a storm at sea; a night in a museum; a gardener on the moon; a
    river in spring; an empty theatre; a teacher's first day; a small kindness; a map with a mistake; a bridge between
    two towns; a grandmother's kitchen; a broken violin; a cat on a roof; a walk in the fog; the oldest tree"""
)
CODE = _list(
    """reverses a string; checks whether a word is a palindrome; counts the words in a text; counts each letter of a
    text; finds the longest word; removes duplicates from a list; sorts a list of numbers; finds the second largest
    number; adds up the digits of a number; computes a factorial; gives the first n Fibonacci numbers; tests whether a
    number is prime; lists the prime factors of a number; finds the greatest common divisor; converts Celsius to
    Fahrenheit; converts a number to binary; converts Roman numerals to numbers; rotates a list by k places; merges
    two dictionaries; flattens a nested list; transposes a matrix; multiplies two matrices; searches a sorted list;
    implements bubble sort; implements quicksort; implements a stack; implements a queue; implements a linked list;
    inserts into a binary tree; walks a graph breadth first; finds the shortest path in a grid; checks balanced
    brackets; reads a CSV file; writes a list to a file; counts the lines of a file; parses a date; gives the days
    between two dates; validates an email address; makes a random password; shuffles a list; plays rock, paper,
    scissors; simulates rolling two dice; computes the average and the median; groups words by their first letter;
    finds anagrams in a list; capitalises every word; removes vowels; encodes a text with a Caesar cipher; finds the
    common elements of two lists; splits a list into chunks; prints a multiplication table; draws a triangle of stars;
    finds missing numbers in a range; keeps the last n lines; retries a function three times; measures how long a call
    takes; caches results; swaps two variables; totals a shopping basket; formats a phone number"""
)
LANGUAGES = ["Python", "JavaScript", "Java", "C", "Go", "Ruby"]
NAMES = _list(
    "Anna; Tom; Maria; David; Lena; Omar; Priya; Chen; Sofia; Paul; Nora; Ivan; Grace; Leo; Mina; Hugo; Zoe; Ali"
)
GOODS = _list(
    "apples; pencils; books; tickets; chairs; stamps; cookies; bottles; shirts; marbles; candles; plates; roses"
)
TOWNS = _list(
    "Millbrook; Eastport; Harlow; Stonebridge; Kingsford; Lakeview; Ashton; Redhill; Oakdale; Fairhaven; Westby"
)

CHAT: list[tuple[str, list[str]]] = [
    (pattern, words)
    for words, patterns in (
        (
            THINGS,
            """What should everybody know about {}?; Explain {} to a child.; Give me five facts about {}.; Why do people
            find {} interesting?; Write a paragraph about {}.; What are common mistakes in thinking about {}?; Tell me
            about the history of {}.; What would the world be like without {}?; Write three quiz questions about {} with
            their answers.; How would you teach {} to beginners?; What is surprising about {}?; Describe {} in simple
            words.; How do {} affect everyday life?; Make an outline for a talk on {}.; Write a dialogue between two
            students about {}.; What words do I need to talk about {}?""",
        ),
        (
            SKILLS,
            """I am new to {}. Where do I begin?; Give me a four-week plan for {}.; What are the most common mistakes
            in {}?; Is {} worth the effort?; How long does it take to get good at {}?; List five tips for {}.; What do I
            need for {}?; How do I stay motivated with {}?; Write an encouraging note to a friend who is {}.; What are
            the benefits of {}?; What makes {} hard, and what helps?; How can I make {} more fun?; Tell me a short story
            about someone {}.; What should I avoid when {}?""",
        ),
        (
            PROBLEMS,
            """{}. What can I do?; {}. What may be the reason?; {}. Give me three ideas.; {}. Help me to plan.; {}.
            What would you do first?; {}. Please write a short message about it to a friend.; {}. How do others deal
            with this?; {}. Is that normal?""",
        ),
        (
            SCENES,
            """Write a short story about {}.; Write a poem about {}.; Describe {} in six sentences.; Write the first
            paragraph of a novel about {}.; Invent a title and a plot for a film about {}.; Write a bedtime story about
            {}.; Write a letter that mentions {}.; Tell a joke about {}.; Write a haiku about {}.; Write a dialogue
            about {}.""",
        ),
    )
    for pattern in _list(patterns)
]
ENDINGS = _list(
    """; Keep it short.; Use simple words.; Answer in a list.; Give an example.; Explain step by step.; Be friendly.; Be
    precise.; Use about 100 words.; Begin with the most important point."""
)


def chat(rng: random.Random) -> str:
    pattern, words = rng.choice(CHAT)
    return f"{pattern.format(rng.choice(words))} {rng.choice(ENDINGS)}".strip()


def code(rng: random.Random) -> str:
    task, language = rng.choice(CODE), rng.choice(LANGUAGES)
    frames = _list(
        """Write a {l} function that {t}.; Write a short {l} program that {t}.; Write {l} code that {t}, with comments.;
        Write a {l} function that {t}, and two tests for it.; Explain how a {l} function that {t} works.; Show me two
        ways to write a {l} function that {t}.; What are pitfalls when you write {l} code that {t}?"""
    )
    return rng.choice(frames).format(l=language, t=task)


def math(rng: random.Random) -> str:
    a, b, c = rng.randint(2, 60), rng.randint(2, 30), rng.randint(2, 12)
    one, two = rng.sample(NAMES, 2)
    frames = _list(
        """{one} has {a} {g} and gets {b} more. How many are there now?; {one} shares {n} {g} among {c} friends. How
        many does each get?; What is {a} times {b}?; What is {p} percent of {k}?; Solve {c}x + {b} = {m}.; A box holds
        {c} {g}. How many {g} are in {b} boxes?; {one} walks {c} km an hour. How far does {one} get in {b} hours?; A
        rectangle is {a} m long and {b} m wide. Find its area and perimeter.; {one} is {b} years older than {two}, who
        is {a}. How old will {one} be in {c} years?; {g} cost {c} euros each. How much do {b} cost?; What is the average
        of {a}, {b} and {c}?; {one} saves {c} euros a week. How long until there are {k} euros?; A price of {k} euros
        falls by {p} percent. What is it then?; Find the next number: {b}, {b2}, {b3}, ...; How many minutes are {c}
        hours and {b} minutes?; {one} reads {c} pages a day of a book of {k} pages. When is it finished?"""
    )
    ending = rng.choice(["", "", "Show your steps.", "Explain your answer.", "Check the result."])
    values = {"a": a, "b": b, "c": c, "n": b * c, "m": b + c * a, "k": 10 * a, "p": 5 * c, "b2": b + c, "b3": b + 2 * c}
    return f"{rng.choice(frames).format(one=one, two=two, g=rng.choice(GOODS), **values)} {ending}".strip()


def summary(rng: random.Random) -> str:
    one, two = rng.sample(NAMES, 2)
    town, year, n = rng.choice(TOWNS), rng.randint(1850, 2020), rng.randint(3, 90)
    thing, skill = rng.choice(THINGS), rng.choice(SKILLS)
    sentences = _list(
        """In {year} a small group in {town} began to meet every week to talk about {thing}.; At first only {n} people
        came, most of them friends of {one}.; {one} had worked on {thing} for years and wanted others to understand it.;
        The town council gave them a room above the library, which was cold in winter.; {two} was not convinced and
        asked many questions.; A year later the group had grown to {m} members and started a course for children.; The
        course also covered {skill}, which was popular with parents.; Money was always short, so {two} organised a
        market that brought in {k} euros.; A newspaper wrote about them, and visitors came from other towns.; Not
        everything went well: a water pipe broke and many papers were lost.; {one} kept a notebook of every meeting,
        and it is now in the museum of {town}.; Some members left because the evenings had become too long.; In the end
        they agreed on two meetings a month and shorter talks.; Today the group is led by {two}, and {thing} is still
        its main topic.; A study found that children who took part did better at school.; {one} says that {skill} taught
        them more about patience than anything else."""
    )
    chosen = [s for s in sentences if rng.random() < 0.5] or sentences[:4]
    text = " ".join(chosen).format(
        year=year, town=town, thing=thing, skill=skill, one=one, two=two, n=n, m=n * rng.randint(2, 9), k=n * 50
    )
    asked = rng.choice(
        _list(
            """Summarise this text in one sentence.; Write a short summary of this text.; List the main points of the
            text below.; What is this text about?; Give the text below a title and a summary of two sentences."""
        )
    )
    return f"{asked}\n\n{text}"


def write_prompts(path: Path, count: int, seed: int = 0) -> dict[str, int]:
    """Writes `{"id", "prompt"}` a line, in a mixed order. Gives how many of each kind."""
    kinds: dict[str, Callable[[random.Random], str]] = {"chat": chat, "code": code, "math": math, "summary": summary}
    shipped = (line for file in sorted(SHIPPED.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines())
    seen = {json.loads(line)["prompt"] for line in shipped}
    rng, rows, counts = random.Random(seed), list[dict[str, str]](), dict.fromkeys(kinds, 0)
    for kind, make in kinds.items():
        for _ in range(20 * count):
            if counts[kind] == round(count * SHARES[kind]):
                break
            if (prompt := make(rng)) not in seen:
                seen.add(prompt)
                rows.append({"id": f"{kind}-{counts[kind]:05d}", "prompt": prompt})
                counts[kind] += 1
        else:
            raise SystemExit(f"{count} prompts are more than the patterns give: {counts[kind]} of {kind}")
    rng.shuffle(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    beside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    beside.replace(path)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(write_prompts(args.out, args.count, args.seed))
