"""Random texts, JSON schemas, grammars and chat templates, each from one seed."""

import json
import random
import re

from tests.support.batch_requests import GRAMMAR
from tests.support.tool_examples import TEMPLATE_MARKS

MARKS = list(TEMPLATE_MARKS.values())
PIECES = ["a", "ä", "😀", "{", "[", '"', "\\", "<", "<think>", "</think>", "<|im_end|>", "a=", "1"]
PIECES += ["<tool_call>", "</tool_call>\n", "9.9e9", ">", "|", "()", "%}", "{{", " ", "\n", "  \t"]
PIECES += ["the wolf ", "\u0301", "\0", "```json", "é ", "a" * 50, *MARKS]
# A rule and its alternatives, between two spaces. In them `<rule>` stands for a text of a rule,
# `<rule*9, >` for up to 9 texts with ", " between them, `<rule^9>` for up to 9 times one text.
TABLE = r"""
atom      [a-z]  [^\"]  .  \\w  \\W  \\d  a  (a|b)  (a|aa)  (?:x{0,9})  ^  $  \\p{L}  (?=a)  [  é
atom      [^\\x00-\\x7f]
times     <>  <>  <>  *  +  ?  {0,99}  {3}  |
part      <atom><times>
regex     <part*12>
pattern   <regex>  <regex>  <regex>  <regex^20>  <regex^5000>
leaf      {"$ref": "#/$defs/<ref>"}  <simple>  {"type": "string", "pattern": "<pattern>"}
simple    {"type": "null"}  {"type": ["string", "null"]}  {"type": "boolean"}  {"const": 1e300}
simple    {"type": "number", "multipleOf": 0.01}  {"type": "integer", "exclusiveMinimum": 7}  true
simple    {"type": "integer", "minimum": -1000000000, "maximum": 1000000000000000000}  {}
simple    {"enum": [1, null, "ab", [1]]}  {"type": "string", "minLength": 1, "maxLength": 200}
simple    {"type": "string", "minLength": 5000}  {"type": "string", "maxLength": 1000000}
simple    {"type": "string", "format": "date-time"}  {"type": "string", "format": "uri"}
schema    {"type": "object", "properties": {<members>}, <closed><others>}
schema    {"type": "array", "items": <schema><limits>}  {"<several>": [<schemas>]}
members   <member*3, >  <member*8, >  <member*8, >  <member*200, >
member    "<name>": <schema>
schemas   <schema*3, >  <schema*8, >  <schema*8, >  <schema*200, >
closed    "additionalProperties": true  "additionalProperties": false
closed    "additionalProperties": <schema>
others    <>  <>  , "patternProperties": {"<pattern>": true}  , "minProperties": 2
limits    <>  , "minItems": 1, "maxItems": <most>  , "prefixItems": [<schemas>]
most      60  1000000
several   anyOf  oneOf  allOf  anyOf  oneOf  not  enum  if
word      "a"  "ab"  [a-z]  [^"\\]  root  r1  r2  r3  r4  ( r1 | r2 )*
odd       "a"  [a-z]  r1  root  (  )  |  {2,5}  {0,500}  ::=  #  .  r2 ::=
body      <items^9 >
items     <first> <item*5 >  <first> <item*5 >  <first> | <item*5 | >
first     <item>  "b"  <ref>
item      <used>  <used>  <used>*  <used>?  <used>{0,9}
template  <inner>  {% for m in messages %}<inner>{% endfor %}
inner     <row>  <row>  <row^300>
row       <jinja*12>
jinja     {{ m.content }}  {{ messages | tojson }}  {{ m | string * 9 }}  {% set x = x ~ x %}
jinja     {% set x = [messages] * 99 %}  {{ 9 ** 9999 }}  {{ m.content.split(m.role) }}
jinja     {{ m.content | trim | upper }}  {% macro f(x) %}{{ f(x) }}{% endmacro %}  {{ f(f) }}
jinja     {% for i in range(999) %}{% for m in messages %}x{% endfor %}{% endfor %}
jinja     {{ raise_exception('x') }}  {{ tools | tojson(indent=4) }}  {{ '%9999999d' % 1 }}
jinja     {{ m.content | replace('a', m.content) }}  {% set ns = namespace(a=m) %}  {{ x.a.b }}
jinja     {% if tools %}{{ tools | map(attribute='function') | list }}{% endif %}  {{ m.x | d('') }}
jinja     {% set ns.a = [ns.a, ns.a] %}  {% generation %}  {% endif %}  {{ bos_token }}
"""
RULES = {"": [""], "left": 1, "name": [f"p{i}" for i in range(2000)]}
for line in TABLE.strip().splitlines():
    RULES.setdefault(line.split()[0], []).extend(re.split("  +", line)[1:])


class RandomTexts:
    """The texts of one seed, in turn."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.pick = self.rng.choice

    def size(self, *most):
        """Return a length of up to one of `most`; short ones are as likely as long ones."""
        return int(self.pick(most) ** self.rng.random())

    def chance(self, probability):
        return self.rng.random() < probability

    def made(self, rule, rules=RULES, depth=0):
        """Return a text of a rule; JSON schemas become leaves where they are deep or many."""
        if rule == "schema":
            rules["left"] -= 1
            depth -= 1
            rule = "leaf" if depth < 0 or rules["left"] < 0 or self.chance(0.3) else rule

        def inner(found):
            name, times, most, joint = found.groups()
            n = self.size(int(most)) if most and rules["left"] > 0 else 1
            if times == "^":
                return joint.join([self.made(name, rules, depth)] * n)
            return (joint or "").join(self.made(name, rules, depth) for _ in range(n))

        text = self.pick(rules[rule])
        return re.sub(r"<(\w*)(?:([*^])(\d+)([^>]*))?>", inner, text) if "<" in text else text

    def schema(self):
        def with_required(found):
            names = list(found.get("properties", ()))
            needed = {"required": self.pick(([], names, names[::2]))} if names else {}
            return found | needed

        names = RULES["name"][: self.size(1, 5, 40, 400)]
        rules, depth = RULES | {"ref": names, "left": self.size(5000)}, self.pick((0, 1, 1, 2))
        first = self.made("schema", rules, self.rng.randrange(1, 4))
        parts = ", ".join(f'"{name}": {self.made("schema", rules, depth)}' for name in names)
        found = f'{{"type": "object", "properties": {{"a": {first}}}, "$defs": {{{parts}}}}}'
        return json.loads(found, object_hook=with_required)

    def gbnf(self):
        names = [f"r{i + 1}" for i in range(max(4, self.size(4, 20, 1500)))]
        words = RULES[self.pick(("word", "word", "word", "word", "odd"))]
        rules = RULES | {"ref": names, "used": words}
        found = "\n".join(f"{name} ::= {self.made('body', rules)}" for name in ["root", *names])
        return self.pick((found, found, self.mutated(GRAMMAR)))

    def text(self, most=250_000):
        n = self.size(min(most, self.pick((20, 1000, 1000, 250_000))))
        one = "".join(self.rng.choices(PIECES, k=self.pick((1, 1, 3, 20))))
        return (one * (n // len(one) + 1))[:n]

    def mutated(self, found):
        for _ in range(self.rng.randrange(4)):
            at = self.rng.randrange(len(found) + 1)
            new = self.pick((self.text(3000), "", found[at : at + 40] * 50, self.pick(PIECES)))
            found = found[:at] + new + found[at + self.rng.randrange(9) :]
        return found

    def deep(self):
        """Return lists and objects in one another."""
        found = 1
        for _ in range(self.size(300)):
            found = self.pick(([found], {"a": found}))
        return found
