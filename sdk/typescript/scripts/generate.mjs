// Generates src/generated/ from the repository's openapi.json: the types of the wire, the same in camelCase, and the table of
// operations. It knows the parts of JSON Schema that the document uses and fails on any other, so that nothing becomes `any` unseen.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

const root = new URL("../../../", import.meta.url);
const out = new URL("../src/generated/", import.meta.url);
const document = JSON.parse(readFileSync(new URL("openapi.json", root), "utf8"));
const header = "// Generated from openapi.json by scripts/generate.mjs. Do not edit.\n\n";

const snake = (name) => name;
const camel = (name) => name.replace(/_([a-z0-9])/g, (_, c) => c.toUpperCase());
const annotations = new Set(["description", "examples", "format", "default", "title", "deprecated", "readOnly", "writeOnly", "$schema",
  "contentEncoding", "contentMediaType", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
  "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "propertyNames"]);
const known = new Set([...annotations, "$ref", "type", "enum", "const", "oneOf", "anyOf", "allOf", "items", "properties", "required", "additionalProperties"]);

/** The operations that the SDK speaks: an operation that is another's second form is left out, and so is what it alone describes. */
function* spoken() {
  for (const [path, item] of Object.entries(document.paths)) {
    for (const method of ["get", "head", "post", "put", "patch", "delete", "options"]) {
      if (item[method] && !item[method]["x-alias-of"]) yield { path, method, operation: item[method] };
    }
  }
}

const used = new Set();
function use(value) {
  if (value === null || typeof value !== "object") return;
  const name = typeof value.$ref === "string" ? value.$ref.replace("#/components/schemas/", "") : undefined;
  if (name !== undefined && !used.has(name)) {
    used.add(name);
    use(document.components.schemas[name]);
  }
  Object.values(value).forEach(use);
}
for (const { operation } of spoken()) use(operation);

/** Members whose keys are data, such as metadata: their keys are never renamed. */
const open = new Set();
const closed = new Set();

function isMap(schema) {
  return schema.type !== undefined && [schema.type].flat().includes("object") && !schema.properties;
}

function typeOf(schema, name, where, indent) {
  if (schema === true) return "unknown";
  for (const key of Object.keys(schema)) {
    if (!known.has(key)) throw new Error(`${where}: the generator does not know ${key}`);
  }
  if (schema.$ref) return schema.$ref.replace("#/components/schemas/", "");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) {
    const values = schema.enum.map((v) => JSON.stringify(v));
    if (name === camel) values.push("(string & {})"); // answers may have values of a newer server
    if ([schema.type ?? []].flat().includes("null")) values.push("null");
    return union(values);
  }
  const variants = schema.oneOf ?? schema.anyOf;
  if (variants) return union(variants.map((v, i) => typeOf(v, name, `${where}/${i}`, indent)));
  if (schema.allOf) return schema.allOf.map((v, i) => typeOf(v, name, `${where}/${i}`, indent)).join(" & ");
  if (schema.type === undefined) return "unknown";
  return union([schema.type].flat().map((type) => {
    switch (type) {
      case "string": case "boolean": case "null": return type;
      case "number": case "integer": return "number";
      case "array": return list(typeOf(schema.items ?? {}, name, `${where}[]`, indent));
      case "object": return objectOf(schema, name, where, indent);
      default: throw new Error(`${where}: the generator does not know the type ${type}`);
    }
  }));
}

const union = (types) => [...new Set(types)].join(" | ");
const list = (type) => (/[ {]/.test(type) ? `(${type})[]` : `${type}[]`);

function objectOf(schema, name, where, indent) {
  const extra = schema.additionalProperties;
  if (!schema.properties) {
    return `{ [key: string]: ${extra === undefined ? "unknown" : typeOf(extra, name, `${where}{}`, indent)} }`;
  }
  const required = new Set(schema.required ?? []);
  const inner = indent + "  ";
  let text = "{\n";
  for (const [key, value] of Object.entries(schema.properties)) {
    text += comment(value.description, inner);
    const renamed = name(key);
    const quoted = /^[A-Za-z_$][\w$]*$/.test(renamed) ? renamed : JSON.stringify(renamed);
    text += `${inner}${quoted}${required.has(key) ? "" : "?"}: ${typeOf(value, name, `${where}.${key}`, inner)};\n`;
    const ends = value.items ?? value;
    if (isMap(ends) || typeOf(ends, name, where, inner) === "unknown") open.add(key);
    else if (ends.$ref || ends.properties) closed.add(key);
  }
  if (extra === true) text += `${inner}[key: string]: unknown;\n`;
  return `${text}${indent}}`;
}

function comment(text, indent) {
  if (!text) return "";
  return `${indent}/** ${text.replaceAll("*/", "*\\/").replace(/\s*\n\s*/g, " ")} */\n`;
}

function types(name) {
  return Object.entries(document.components.schemas).filter(([schemaName]) => used.has(schemaName)).map(([schemaName, schema]) => {
    const type = typeOf(schema, name, schemaName, "");
    const shape = type.startsWith("{\n") ? `export interface ${schemaName} ${type}` : `export type ${schemaName} = ${type};`;
    return `${comment(schema.description, "")}${shape}\n`;
  }).join("\n");
}

function operations() {
  let text = "/** Every operation of the document by its id. */\nexport const operations = {\n";
  for (const { path, method, operation } of spoken()) {
    text += `  ${JSON.stringify(operation.operationId)}: { method: "${method.toUpperCase()}", path: ${JSON.stringify(path)} },\n`;
  }
  return `${text}} as const;\n\nexport type OperationId = keyof typeof operations;\n`;
}

const wire = types(snake);
const model = types(camel);
for (const key of open) {
  if (closed.has(key)) throw new Error(`${key} holds data in one schema and members in another: the SDK could not tell which keys to rename`);
}
const members = `/** Members whose keys are data and are therefore never renamed. */\nexport const openMembers: ReadonlySet<string> = new Set(${JSON.stringify([...open].sort())});\n`;
mkdirSync(out, { recursive: true });
writeFileSync(new URL("wire.ts", out), header + wire);
writeFileSync(new URL("model.ts", out), header + model);
writeFileSync(new URL("operations.ts", out), header + members + "\n" + operations());
