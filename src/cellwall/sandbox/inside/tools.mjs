// Tools of the host that code can call; the host checks each call. As tools.py, with promises.

class ToolError extends Error {
  name = "ToolError";
}

// `functions.name(...)` calls a tool: one plain object gives its named arguments, anything else its
// positional ones. `settle` is given each answer of the host.
export function makeTools(write, names) {
  const waiting = new Map();
  const mark = crypto.randomUUID(); // an answer to a hand-written call has another
  let count = 0;

  const call = (name, args) =>
    new Promise((resolve, reject) => {
      count += 1;
      const number = `${mark}-${count}`;
      const isNamed = args.length === 1 && isPlainObject(args[0]);
      waiting.set(number, { resolve, reject });
      write({ call: number, name, args: isNamed ? [] : args, kwargs: isNamed ? args[0] : {} });
    });

  const functions = { ToolError };
  for (const name of names) functions[name] = (...args) => call(name, args);
  const settle = (answer) => {
    const waits = waiting.get(answer.answer);
    waiting.delete(answer.answer);
    if ("error" in answer) waits?.reject(new ToolError(answer.error));
    else waits?.resolve(answer.value);
  };
  return { functions, settle };
}

function isPlainObject(value) {
  if (value === null || typeof value !== "object") return false;
  return [Object.prototype, null].includes(Object.getPrototypeOf(value));
}
