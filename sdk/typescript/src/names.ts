import { openMembers } from "./generated/operations.js";

/** Members of answers whose keys are data, beyond those that the generated table knows. */
const alsoOpen = new Set(["data", "results"]);

/** Renames the members of an answer to camelCase, but for keys that are data, such as those of metadata and env. */
export function camelize<T>(value: unknown): T {
  return convert(value) as T;
}

function convert(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(convert);
  if (typeof value !== "object" || value === null) return value;
  const out: Record<string, unknown> = {};
  for (const [key, member] of Object.entries(value)) {
    define(out, camel(key), openMembers.has(key) || alsoOpen.has(key) ? member : convert(member));
  }
  return out;
}

function camel(name: string): string {
  return name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** Sets an own member even where its name is `__proto__`: answers come from outside. */
function define(target: Record<string, unknown>, key: string, value: unknown): void {
  Object.defineProperty(target, key, { value, enumerable: true, writable: true, configurable: true });
}

/** Leaves out what is not set, because the server refuses unknown members and takes null for a value. */
export function defined<T extends object>(members: T): T {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as T;
}
