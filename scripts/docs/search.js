// Part of the site: what is typed into its search becomes the words that say something, without endings, as the index
// knows each word as it is written and finds all words that begin with a typed one.
(() => {
  const EMPTY = new Set(
    ("a about an and any are as at be been by can could do does doing for from get gets give got had has have how i if in " +
      "into is it its just let lets make makes me mine my need not of on one or our please same should so some than that " +
      "the their them then there these they this those to too use used using want was way we were what when where which " +
      "who why will with work works would you your").split(" "),
  );

  function stem(word) {
    if (word.length < 5 || !/^[a-z]+$/.test(word)) return word;
    const short = word.replace(/(?<!s)s$/, "").replace(/(?:ing|ed|e)$/, "");
    return short.length < 3 ? word : short.replace(/([b-df-hj-np-rtv-z])\1$/, "$1");
  }

  function wordsOf(query) {
    if (/["+~^:*]/.test(query)) return query; // the notation of the search itself
    const typed = query.toLowerCase().replace(/\b(\d+)([gm]b)\b/g, "$1 $2").split(/[\s/,;?!()]+/).filter(Boolean);
    const words = typed.filter((word) => !EMPTY.has(word));
    return (words.length ? words : typed)
      .map((word, i, all) => (word.length < 4 && i < all.length - 1 ? word + "^1" : stem(word)))
      .join(" ");
  }

  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...more) {
    const isQuery = message?.type === 2 && typeof message.data === "string";
    return post.call(this, isQuery ? { ...message, data: wordsOf(message.data) } : message, ...more);
  };
})();
