"""Slice ``code``: short programming tasks, half of them over a given piece of code."""

from __future__ import annotations

from gatekeeper.workloads.chat import Prompt, chat

__all__ = ["build"]

_WRITE: tuple[tuple[str, str], ...] = (
    (
        "interval-merge",
        "Write a Python function merge_intervals(intervals) that joins overlapping closed intervals and returns them sorted.",
    ),
    (
        "roman",
        "Write a Python function to_roman(number) for 1 to 3999 and raise ValueError outside.",
    ),
    (
        "ring-buffer",
        "Write a Python class RingBuffer with append, __len__ and __iter__ that keeps the newest n items.",
    ),
    (
        "csv-sum",
        "Write a Python function that reads a CSV file and returns the sum of the column amount for each value of the column city.",
    ),
    (
        "retry",
        "Write a Python decorator retry(times, delay) that repeats a function when it raises OSError.",
    ),
    (
        "topological",
        "Write a Python function topological_order(graph) for a dict of sets that raises ValueError on a cycle.",
    ),
    (
        "lru",
        "Implement an LRU cache in Python with get and put in constant time, without functools.",
    ),
    (
        "binary-search",
        "Write a Python function first_at_least(values, wanted) that finds the index of the first value not below wanted in a sorted list.",
    ),
    ("matrix", "Write a Python function that rotates a square matrix by ninety degrees in place."),
    (
        "tokenizer",
        "Write a Python generator that splits an arithmetic expression into numbers, operators and brackets.",
    ),
    (
        "luhn",
        "Write a Python function that checks a card number by the Luhn rule and ignores spaces.",
    ),
    (
        "histogram",
        "Write a Python function that prints a text histogram of the word lengths of a sentence.",
    ),
)

_GIVEN: tuple[tuple[str, str, str], ...] = (
    (
        "add-types",
        "Add type hints to every function and return the whole file.",
        "def area(width, height):\n    return width * height\n\ndef perimeter(width, height):\n    return 2 * (width + height)\n\ndef diagonal(width, height):\n    return (width ** 2 + height ** 2) ** 0.5\n",
    ),
    (
        "add-field",
        "Add the field currency with the default EUR and use it in describe. Return the whole class.",
        "class Invoice:\n    def __init__(self, number, customer, amount):\n        self.number = number\n        self.customer = customer\n        self.amount = amount\n\n    def describe(self):\n        return f'{self.number}: {self.customer} owes {self.amount}'\n",
    ),
    (
        "fix-bug",
        "The function loses the last group. Repair it and return the whole function.",
        "def runs(values):\n    groups = []\n    current = [values[0]]\n    for value in values[1:]:\n        if value == current[-1]:\n            current.append(value)\n        else:\n            groups.append(current)\n            current = [value]\n    return groups\n",
    ),
    (
        "rename",
        "Rename the variable d to duration_s and t to start_s everywhere. Return the whole function.",
        "def overlap(t, d, other_t, other_d):\n    end = t + d\n    other_end = other_t + other_d\n    return max(0, min(end, other_end) - max(t, other_t))\n",
    ),
    (
        "to-dataclass",
        "Turn this class into a frozen dataclass.",
        "class Point:\n    def __init__(self, x, y, label='origin'):\n        self.x = x\n        self.y = y\n        self.label = label\n",
    ),
    (
        "docstrings",
        "Add a one-line docstring to each function and return the code.",
        "def celsius(fahrenheit):\n    return (fahrenheit - 32) * 5 / 9\n\ndef fahrenheit(celsius):\n    return celsius * 9 / 5 + 32\n\ndef kelvin(celsius):\n    return celsius + 273.15\n",
    ),
    (
        "javascript",
        "Translate the function to JavaScript.",
        "def slug(title):\n    words = title.lower().split()\n    kept = [word for word in words if word not in {'a', 'an', 'the'}]\n    return '-'.join(kept)\n",
    ),
    (
        "unit-tests",
        "Write pytest tests for the three branches.",
        "def fare(age, distance_km):\n    if age < 6:\n        return 0\n    price = 2 + 0.25 * distance_km\n    if age >= 65:\n        return price / 2\n    return price\n",
    ),
    (
        "sql",
        "Write the SQL query that returns the same rows.",
        "result = []\nfor order in orders:\n    if order.status == 'open' and order.total > 100:\n        result.append((order.customer, order.total))\nresult.sort(key=lambda row: -row[1])\n",
    ),
    (
        "loop-to-comprehension",
        "Rewrite the loop as a dict comprehension and keep the function's name.",
        "def prices_by_name(products):\n    found = {}\n    for product in products:\n        if product.price is not None:\n            found[product.name] = round(product.price, 2)\n    return found\n",
    ),
    (
        "extend-enum",
        "Add the states PAUSED and CANCELLED and their transitions. Return the whole code.",
        "class State(Enum):\n    QUEUED = 'queued'\n    RUNNING = 'running'\n    DONE = 'done'\n\nTRANSITIONS = {\n    State.QUEUED: {State.RUNNING},\n    State.RUNNING: {State.DONE},\n    State.DONE: set(),\n}\n",
    ),
    (
        "shell",
        "Write a shell script that does the same with find.",
        "for path in Path('logs').rglob('*.log'):\n    if path.stat().st_mtime < time.time() - 7 * 86400:\n        path.unlink()\n",
    ),
    (
        "early-return",
        "Remove the nesting with early returns and return the whole function.",
        "def ship(order):\n    if order.paid:\n        if order.address:\n            if order.items:\n                return 'shipped'\n            else:\n                return 'empty'\n        else:\n            return 'no address'\n    else:\n        return 'unpaid'\n",
    ),
)


def build() -> tuple[Prompt, ...]:
    """Return 12 tasks from a sentence and 13 that edit or translate given code."""
    written = [(name, text) for name, text in _WRITE]
    given = [(name, f"{wish}\n```python\n{source}```") for name, wish, source in _GIVEN]
    return tuple(
        Prompt(f"code-{name}", "code", chat([("user", text)])) for name, text in written + given
    )
