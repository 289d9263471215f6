// Ranks the hits of the site's search. Sphinx scores a page by its best word alone, so many pages have the same score.
// Here titles and headings with most of the typed words come first, and pages of the guide come before those on
// switching, the reference (unless its exact name is typed) and the pages for maintainers.
const RANKED_LOWER = { api: 15, changelog: 5, "coming-from": 3, maintainers: 60, migrating: 3, trials: 3 };

Scorer.score = ([page, title, , description, score, , kind]) => {
  const stems = text => splitQuery(text.toLowerCase()).map(word => new Stemmer().stemWord(word));
  const query = new URLSearchParams(window.location.search).get("q");
  const typed = stems(query).filter(word => !stopwords.has(word));
  const share = text => typed.filter(word => stems(text).includes(word)).length / typed.length;
  if (score > Scorer.objNameMatch && /^Python (class|exception|function)/.test(description)) return score + 20;
  const { alltitles, docnames } = Search._index;
  const headings = Object.keys(alltitles).filter(text => alltitles[text].some(([file]) => docnames[file] === page));
  const best = kind === "object" ? 0 : Math.max(0, ...headings.map(share));
  return score + 10 * share(title) + 5 * best - (RANKED_LOWER[page.match(/^(coming-from|migrating|\w+)/)[0]] ?? 0);
};
