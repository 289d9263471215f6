// Searches a built site with the scripts of its search page: `node search.js SITE`, queries as a JSON array on stdin.
// Writes the hits of each query in the order in which they are shown, as [page, title].
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const SCRIPTS = ["doctools.js", "sphinx_highlight.js", "searchtools.js", "language_data.js", "../searchindex.js"];

globalThis.window = globalThis;
globalThis.location = { search: "" };
globalThis.localStorage = { setItem() {} };
globalThis.document = { readyState: "loading", addEventListener() {}, getElementById: () => null };

for (const name of SCRIPTS) {
  const script = path.join(process.argv[2], "_static", name);
  vm.runInThisContext(fs.readFileSync(script, "utf8"), script);
}

const search = vm.runInThisContext("query => Search._performSearch(...Search._parseQuery(query)).reverse()");

function hits(query) {
  location.search = `?${new URLSearchParams({ q: query })}`;
  return search(query).map(([page, title]) => [page, title]);
}

process.stdout.write(JSON.stringify(JSON.parse(fs.readFileSync(0, "utf8")).map(hits)));
