// From the text that a caller sends to the text that V8 evaluates.
//
// Types are removed. Import declarations at the beginning become `await`: V8 evaluates scripts, not
// modules, when variables are to live on. Elsewhere an import declaration needs a parser to be found
// with certainty; such code is run as a module of its own (runner.mjs).

import module from "node:module";

const SKIPPED = /(?:\s|;|\/\/[^\n]*|\/\*[^]*?\*\/)*/y;
const DIRECTIVE = /(["'])use strict\1/y;
const IMPORT =
  /import\b(?:([\p{ID_Continue}$\s,*{}]+?)\bfrom\b|([\s]*\{[\p{ID_Continue}$\s,]*\}\s*)from\b)?\s*(["'])([^"'\\\n]*)\3(?:\s*with\s*(\{[^{}]*\}))?/uy;
const NAME = "[\\p{ID_Start}$_][\\p{ID_Continue}$]*";
const DEFAULT = new RegExp(`^(${NAME})\\s*,?`, "u");
const NAMESPACE = new RegExp(`^\\*\\s*as\\s+(${NAME})$`, "u");
const NAMED = new RegExp(`^(${NAME})(?:\\s+as\\s+(${NAME}))?$`, "u");

const PLACE = /\s*at file:\/\/\/stripTypeScriptTypes\.ts\S*/g;

export const IMPORTER = Symbol.for("cellwall.import");

// Whether V8 refused the text only because it is a module.
export const isModule = (error) =>
  /outside a module|Unexpected token 'export'/.test(String(error));

export function withoutTypes(source) {
  const strip = module.stripTypeScriptTypes;
  try {
    return strip(source, { mode: "strip" }); // keeps lines and columns
  } catch {
    // Enumerations, namespaces and parameter properties are code. The transformer leaves out imports
    // that this text does not use; the next one may.
    const end = leadingImports(source).end;
    try {
      return strip(source.slice(0, end), { mode: "strip" }) +
        strip(source.slice(end), { mode: "transform" });
    } catch (error) {
      throw new SyntaxError(String(error.message).replace(PLACE, "").replace(/^SyntaxError: /, ""));
    }
  }
}

// The text with its leading import declarations replaced, each line where it was.
export function withoutImports(source) {
  const { found, end } = leadingImports(source);
  if (found.length === 0) return source;
  let text = "";
  let at = 0;
  for (const each of found) {
    const lines = source.slice(each.start, each.end).split("\n").length - 1;
    text += source.slice(at, each.start) + bindings(each) + "\n".repeat(lines);
    at = each.end;
  }
  return text + source.slice(at, end) + source.slice(end);
}

function leadingImports(source) {
  const found = [];
  let at = source.startsWith("#!") ? source.indexOf("\n") + 1 || source.length : 0;
  for (;;) {
    at = after(SKIPPED, source, at);
    DIRECTIVE.lastIndex = IMPORT.lastIndex = at;
    const match = DIRECTIVE.exec(source) ?? IMPORT.exec(source);
    if (match === null) return { found, end: at };
    const end = at + match[0].length;
    if (match[0].startsWith("import")) {
      const clause = (match[1] ?? match[2] ?? "").trim();
      found.push({ start: at, end, clause, from: match[4], options: match[5] });
    }
    at = end;
  }
}

function after(pattern, source, at) {
  pattern.lastIndex = at;
  pattern.exec(source);
  return pattern.lastIndex;
}

function bindings({ clause, from, options }) {
  const given = options === undefined ? "" : `, { with: ${options} }`;
  const load = `await globalThis[Symbol.for("cellwall.import")](${JSON.stringify(from)}${given});`;
  const names = [];
  let namespace = "";
  let rest = clause;
  const first = DEFAULT.exec(rest);
  if (first !== null) {
    names.push(`default: ${first[1]}`);
    rest = rest.slice(first[0].length).trim();
  }
  const all = NAMESPACE.exec(rest);
  if (all !== null) {
    namespace = all[1];
  } else {
    for (const part of rest.replace(/[{}]/g, "").split(",")) {
      const named = NAMED.exec(part.trim());
      if (named !== null) names.push(`${named[1]}: ${named[2] ?? named[1]}`);
    }
  }
  if (namespace !== "") {
    const inner = names.length > 0 ? ` const { ${names.join(", ")} } = ${namespace};` : "";
    return `const ${namespace} = ${load}${inner}`;
  }
  return names.length > 0 ? `const { ${names.join(", ")} } = ${load}` : load;
}
