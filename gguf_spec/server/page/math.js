/**
 * Formulas: a subset of TeX becomes MathML, which the browser draws. What is not known is shown as
 * it was written. Everything becomes text nodes and elements of a fixed set.
 */

import { make } from "./dom.js";

const MAX_TEXT = 4000; // characters; longer formulas are shown as they are
const MAX_DEPTH = 40; // groups inside of groups
const TOKEN = /\\[a-zA-Z]+\*?|\\.|\d+(?:\.\d+)?|\s+|[^]/gu;
const named = (text) => Object.fromEntries(text.trim().split(/\s+/).map((one) => one.split("=")));
const LETTERS = named(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ
  vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π rho=ρ sigma=σ tau=τ upsilon=υ phi=ϕ varphi=φ
  chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Phi=Φ Psi=Ψ Omega=Ω
  infty=∞ partial=∂ nabla=∇ ell=ℓ hbar=ℏ emptyset=∅ varnothing=∅ Re=ℜ Im=ℑ aleph=ℵ`);
const SIGNS = named(`times=× cdot=⋅ div=÷ pm=± mp=∓ leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ approx=≈ equiv=≡
  sim=∼ simeq=≃ propto=∝ ll=≪ gg=≫ in=∈ notin=∉ subset=⊂ subseteq=⊆ supset=⊃ cup=∪ cap=∩ setminus=∖
  forall=∀ exists=∃ neg=¬ land=∧ wedge=∧ lor=∨ vee=∨ to=→ rightarrow=→ leftarrow=← Rightarrow=⇒
  Leftarrow=⇐ iff=⇔ Leftrightarrow=⇔ implies=⟹ mapsto=↦ ldots=… dots=… cdots=⋯ vdots=⋮ mid=∣ parallel=∥
  perp=⊥ angle=∠ circ=∘ ast=∗ star=⋆ oplus=⊕ otimes=⊗ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈
  rceil=⌉ lvert=| rvert=| lVert=‖ rVert=‖ colon=: prime=′ dagger=†`);
const LARGE = named("sum=∑ prod=∏ int=∫ iint=∬ oint=∮ bigcup=⋃ bigcap=⋂");
const ESCAPED = {
  "\\{": "{", "\\}": "}", "\\%": "%", "\\$": "$", "\\#": "#", "\\_": "_", "\\&": "&", "\\|": "‖",
};
const SPACES = {
  "\\,": 0.17, "\\:": 0.22, "\\;": 0.28, "\\ ": 0.3, "\\!": 0, "~": 0.3, "\\quad": 1, "\\qquad": 2,
};
const FUNCTIONS = new Set(`sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp det dim ker gcd
  deg arg max min sup inf lim Pr`.split(/\s+/));
const LIMITS = new Set(["lim", "max", "min", "sup", "inf"]);
const TEXTS = new Set(["text", "textbf", "textit", "textrm", "mathrm", "operatorname", "mbox"]);
const STYLES = {
  mathbf: "bold", mathbb: "double-struck", mathcal: "script", mathfrak: "fraktur", mathsf: "", mathit:
  "", boldsymbol: "bold", bm: "bold",
};
const ACCENTS = {
  hat: "^", widehat: "^", bar: "‾", overline: "‾", vec: "→", tilde: "~", dot: "˙", ddot: "¨",
};
const FENCES = {
  pmatrix: "()", bmatrix: "[]", vmatrix: "||", Bmatrix: "{}", cases: "{ ", matrix: "  ", aligned: "  ",
  "align*": "  ", align: "  ", gathered: "  ", array: "  ",
};
const SPECIAL_ALPHABETS = {
  "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
};

/** Return a formula as an element: `math`, or `code` with its text if it has something unknown. */
export function renderMath(text, isBlock) {
  try {
    if (text.length > MAX_TEXT) throw new Unknown(text);
    const formula = new Formula(text, isBlock);
    const row = formula.row(() => false);
    const math = element("math", row);
    if (isBlock) math.setAttribute("display", "block");
    math.setAttribute("aria-label", text);
    return math;
  } catch (error) {
    if (!(error instanceof Unknown)) throw error;
    return make("code", isBlock ? "formula block" : "formula", text);
  }
}

class Unknown extends Error {}

function element(tag, ...children) {
  const one = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  one.append(...children);
  return one;
}

/** Reads one formula from the left to the right. */
class Formula {
  constructor(text, isBlock) {
    this.tokens = text.match(TOKEN) ?? [];
    this.isBlock = isBlock;
    this.at = 0;
    this.depth = 0;
  }

  next() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  /** Return a row up to a token that `ends` it, which is not read. */
  row(ends) {
    if ((this.depth += 1) > MAX_DEPTH) throw new Unknown("too deep");
    const row = element("mrow");
    for (let token = this.next(); token !== undefined && !ends(token); token = this.next()) {
      row.append(this.withScripts());
    }
    this.depth -= 1;
    return row;
  }

  withScripts() {
    const name = this.next().slice(1);
    const stacked = this.isBlock && (name in LARGE ? !name.endsWith("int") : LIMITS.has(name));
    const base = "^_'".includes(this.next()) ? element("mrow") : this.atom();
    let below = null;
    let above = null;
    for (let token = this.next(); token === "^" || token === "_" || token === "'"; token = this.next()) {
      this.at += 1;
      if (token === "_" && !below) below = this.atom();
      else if (token === "^" && !above) above = this.atom();
      else if (token === "'") above = element("mrow", ...(above ? [above] : []), element("mo", "′"));
      else throw new Unknown(token);
    }
    const one = this.scripted(base, below, above, stacked);
    const isApplied = FUNCTIONS.has(name) && !"([{^_".includes(this.next() ?? "(");
    return isApplied ? element("mrow", one, this.space(0.17)) : one;
  }

  scripted(base, below, above, stacked) {
    const [both, under, over] = stacked ? ["munderover", "munder", "mover"] : ["msubsup", "msub", "msup"];
    if (below && above) return element(both, base, below, above);
    if (below) return element(under, base, below);
    return above ? element(over, base, above) : base;
  }

  atom() {
    const token = this.next();
    if (token === undefined || "}&^_".includes(token)) throw new Unknown(token);
    this.at += 1;
    if (token === "{") return this.group();
    if (/^\d/.test(token)) return element("mn", token);
    if (/^\p{L}/u.test(token)) return element("mi", token);
    if (token in SPACES) return this.space(SPACES[token]);
    if (token in ESCAPED) return element("mo", ESCAPED[token]);
    if (token[0] === "\\") return this.command(token.slice(1));
    const sign = element("mo", token === "-" ? "−" : token);
    if ("()[]|".includes(token)) sign.setAttribute("stretchy", "false"); // unlike those of \left
    return sign;
  }

  space(width) {
    const space = element("mspace");
    space.setAttribute("width", `${width}em`);
    return space;
  }

  group() {
    const row = this.row((token) => token === "}");
    this.expect("}");
    return row;
  }

  expect(token) {
    if (this.next() !== token) throw new Unknown(token);
    this.at += 1;
  }

  command(name) {
    if (Object.hasOwn(LETTERS, name)) return element("mi", LETTERS[name]);
    if (Object.hasOwn(SIGNS, name)) return element("mo", SIGNS[name]);
    if (Object.hasOwn(LARGE, name)) return element("mo", LARGE[name]);
    if (FUNCTIONS.has(name)) return element("mi", name);
    if (TEXTS.has(name)) return element("mtext", this.raw().replaceAll(" ", "\u00a0"));
    if (Object.hasOwn(STYLES, name)) return styled(this.raw(), STYLES[name]);
    if (Object.hasOwn(ACCENTS, name)) return element("mover", this.atom(), element("mo", ACCENTS[name]));
    if (/^[dt]?frac$/.test(name)) return element("mfrac", this.atom(), this.atom());
    if (/^[dt]?binom$/.test(name)) return this.binomial();
    if (name === "sqrt") return this.root();
    if (name === "left") return this.fenced();
    if (name === "begin") return this.table(this.raw());
    if (/^(big|Big|bigg|Bigg)[lrm]?$/.test(name)) return this.atom();
    if (name === "limits" || name === "displaystyle" || name === "nolimits") return element("mrow");
    throw new Unknown(name);
  }

  /** Return the text of a group as it is written. */
  raw() {
    this.expect("{");
    const from = this.at;
    while (this.tokens[this.at] !== "}") {
      if (this.at >= this.tokens.length || this.tokens[this.at] === "{") throw new Unknown("{");
      this.at += 1;
    }
    this.at += 1;
    return this.tokens.slice(from, this.at - 1).join("");
  }

  binomial() {
    const fraction = element("mfrac", this.atom(), this.atom());
    fraction.setAttribute("linethickness", "0");
    return element("mrow", element("mo", "("), fraction, element("mo", ")"));
  }

  root() {
    if (this.next() !== "[") return element("msqrt", this.atom());
    this.at += 1;
    const degree = this.row((token) => token === "]");
    this.expect("]");
    return element("mroot", this.atom(), degree);
  }

  fence() {
    const token = this.next();
    if (token === undefined) throw new Unknown("");
    this.at += 1;
    const name = token.slice(1);
    const sign = token === "." ? "" : (ESCAPED[token] ?? (token[0] === "\\" ? SIGNS[name] : token));
    if (sign === undefined) throw new Unknown(token);
    return element("mo", sign);
  }

  fenced() {
    const open = this.fence();
    const row = this.row((token) => token === "\\right");
    this.expect("\\right");
    return element("mrow", open, row, this.fence());
  }

  table(name) {
    if (!Object.hasOwn(FENCES, name)) throw new Unknown(name);
    if (name === "array") this.raw();
    const table = element("mtable", element("mtr"));
    const ends = (token) => token === "&" || token === "\\\\" || token === "\\end";
    for (;;) {
      table.lastChild.append(element("mtd", this.row(ends)));
      const token = this.next();
      this.at += 1;
      if (token === "\\\\") table.append(element("mtr"));
      else if (token !== "&") break;
    }
    if (this.raw() !== name) throw new Unknown(name);
    const [open, close] = [...FENCES[name]].map((sign) => element("mo", sign.trim()));
    return element("mrow", open, table, close);
  }
}

function styled(text, variant) {
  const known = SPECIAL_ALPHABETS[variant] ?? {};
  const one = element("mi", [...text].map((letter) => known[letter] ?? letter).join(""));
  if (variant === "bold") one.setAttribute("class", "bold");
  return one;
}
