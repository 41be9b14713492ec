/** Code in three colours: comments, texts and words of the language. One pass, in linear time. */

import { make } from "./dom.js";

const MAX_TEXT = 50000; // characters; longer code has one colour
const WORDS = {
  python: `
    and as assert async await break class continue def del elif else except finally for from global
    if import in is lambda nonlocal not or pass raise return try while with yield True False None
    self match case`,
  c: `
    auto break case catch class const constexpr continue default delete do double else enum extern
    false float for goto if inline int long namespace new nullptr operator private protected public
    return short signed sizeof static struct switch template this throw true try typedef typename
    union unsigned using virtual void volatile while bool char`,
  js: `
    async await break case catch class const continue default delete do else export extends false
    finally for from function if import in instanceof interface let new null of return static super
    switch this throw true try type typeof undefined var void while yield`,
  rust: `
    as async await break const continue crate else enum extern false fn for if impl in let loop
    match mod move mut pub ref return self Self static struct super trait true type unsafe use where
    while`,
  go: `
    break case chan const continue default defer else fallthrough false for func go goto if import
    interface map nil package range return select struct switch true type var`,
  java: `
    abstract boolean break byte case catch char class continue default do double else enum extends
    false final finally float for if implements import instanceof int interface long native new null
    package private protected public return short static super switch this throw throws true try
    void while fun val var when`,
  shell: "case do done elif else esac export fi for function if in local return set then until while",
  sql: `
    add all alter and as asc between by case create delete desc distinct drop else end exists
    foreign from group having in index inner insert into is join key left like limit not null on or
    order primary references right select set table then union unique update values view when where`,
  data: "true false null yes no on off",
};
const ALIASES = {
  py: "python", cpp: "c", "c++": "c", h: "c", cs: "java", csharp: "java", kotlin: "java",
  javascript: "js", typescript: "js", ts: "js", jsx: "js", tsx: "js", rs: "rust", golang: "go",
  bash: "shell", sh: "shell", zsh: "shell", console: "shell", json: "data", yaml: "data", yml:
  "data", toml: "data", ini: "data",
};
const HASH = new Set(["python", "shell", "data"]);
const SLASHES = String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`;
const LONG = { js: "`[^`]*`|", go: "`[^`]*`|", python: `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|` };
const STRINGS = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'`;

/** Append code to an element. */
export function appendCode(place, language, text) {
  const name = ALIASES[language.toLowerCase()] ?? language.toLowerCase();
  if (!Object.hasOwn(WORDS, name) || text.length > MAX_TEXT) {
    place.append(text);
    return;
  }
  const comment = HASH.has(name) ? "#.*" : name === "sql" ? "--.*" : SLASHES;
  const long = LONG[name] ?? "";
  const words = new Set(WORDS[name].trim().split(/\s+/));
  const token = new RegExp(`(${comment})|(${long}${STRINGS})|([\\p{L}_$][\\p{L}\\p{N}_$]*)`, "gu");
  let at = 0;
  for (const match of text.matchAll(token)) {
    const word = name === "sql" ? match[0].toLowerCase() : match[0];
    const kind = match[1] ? "comment" : match[2] ? "string" : words.has(word) ? "word" : "";
    if (!kind) continue;
    place.append(text.slice(at, match.index), make("span", kind, match[0]));
    at = match.index + match[0].length;
  }
  place.append(text.slice(at));
}
