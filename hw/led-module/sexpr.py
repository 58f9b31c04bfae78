"""Reads and writes the s-expressions of KiCad files. A list is a Python list; the classes below tell atoms apart."""
import re


class Word(str):
    """An atom that KiCad writes without quotes: a keyword, a number or a layer pattern."""


TOKEN = re.compile(r'\s*(?:(\()|(\))|"((?:[^"\\]|\\.)*)"|([^\s()"]+))')


def parse(text):
    """Returns the first expression of `text`. Raises ValueError if the text is not one expression."""
    stack, result, position = [], None, 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match or result is not None:
            raise ValueError(f"character {position}: expected one s-expression")
        position = match.end()
        opens, closes, quoted, word = match.groups()
        if opens:
            stack.append([])
            continue
        if closes:
            if not stack:
                raise ValueError(f"character {position}: a closing parenthesis without its opening one")
            atom = stack.pop()
        elif quoted is not None:
            atom = re.sub(r"\\(.)", lambda m: "\n" if m.group(1) == "n" else m.group(1), quoted)
        else:
            atom = Word(word)
        if stack:
            stack[-1].append(atom)
        elif closes:
            result = atom
        else:
            raise ValueError("expected a list, not an atom")
    if result is None:
        raise ValueError("the text ends inside a list")
    return result


def atom(value):
    """Returns the text of one atom. Numbers have at most 4 decimals, so that the same drawing has the same bytes."""
    if isinstance(value, Word):
        return value
    if isinstance(value, (int, float)):
        text = f"{value:.4f}".rstrip("0").rstrip(".")
        return "0" if text in ("-0", "") else text
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def write(expression, depth=0):
    """Returns the text of `expression`: on one line if it is short, otherwise with one line per inner list."""
    if not isinstance(expression, list):
        return atom(expression)
    line = "(" + " ".join(write(item) for item in expression) + ")"
    if len(line) + 2 * depth <= 118 or not any(isinstance(item, list) for item in expression):
        return line
    text = "("
    for index, item in enumerate(expression):
        if isinstance(item, list):
            text += "\n" + "  " * (depth + 1) + write(item, depth + 1)
        else:
            text += (" " if index else "") + write(item)
    return text + "\n" + "  " * depth + ")"


def children(expression, name):
    """Returns the inner lists that start with the word `name`."""
    return [item for item in expression if isinstance(item, list) and item and item[0] == name]


def child(expression, name):
    """Returns the only inner list that starts with `name`, or None."""
    found = children(expression, name)
    if len(found) > 1:
        raise ValueError(f"expected at most one ({name} ..), found {len(found)}")
    return found[0] if found else None


def numbers(expression):
    """Returns the numbers of a list such as `(at 1 2 90)` without its name."""
    return [float(item) for item in expression[1:] if isinstance(item, Word) and re.fullmatch(r"-?[\d.]+", item)]


def node(name, *items):
    """Builds a list: `name` and strings that start with `=` become words, everything else is kept."""
    return [Word(name)] + [Word(i[1:]) if isinstance(i, str) and i.startswith("=") else i for i in items]
