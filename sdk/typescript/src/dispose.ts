// `await using` compiles to Symbol.asyncDispose, which Node.js 18 lacks. Imported first, before a class uses it as a name.
for (const name of ["dispose", "asyncDispose"] as const) {
  if ((Symbol as unknown as Record<string, unknown>)[name] === undefined) {
    Object.defineProperty(Symbol, name, { value: Symbol.for(`Symbol.${name}`), configurable: false, enumerable: false, writable: false });
  }
}

export {};
