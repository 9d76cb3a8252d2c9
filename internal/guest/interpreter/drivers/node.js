// Runs the programs of a javascript or typescript context. The argument after this file names the language; descriptor 3 is the
// control socket.
'use strict';
const fs = require('fs');
const module_ = require('module');
const net = require('net');
const path = require('path');
const { Writable } = require('stream');
const util = require('util');
const vm = require('vm');

const MOST_RESULTS = 15 << 20;
const MOST_TEXT = 1 << 20;
const MOST = [256, 16 << 10, 128 << 10];
const typescript = process.argv[2] === 'typescript';

let acorn; // node's own parser, where it lets us have it
try {
  acorn = require('internal/deps/acorn/acorn/dist/acorn');
} catch {
  acorn = null;
}

class Interrupted extends Error {
  constructor() {
    super('Script execution was interrupted');
    this.name = 'Interrupted';
    this.stack = 'Interrupted: ' + this.message;
  }
}

let run = '0';
let sent = 0;
let stop = null; // interrupts what the run waits for
let broken = null; // ends the run that waits, by an exception outside of it

const control = new net.Socket({ fd: 3, readable: true, writable: false });

// writeAll does not return before everything is written. Streams would not do: an interrupt ends JavaScript anywhere, also within them,
// and they would never be in order again.
function writeAll(fd, data) {
  while (data.length > 0) {
    try {
      data = data.subarray(fs.writeSync(fd, data));
    } catch (e) {
      if (e.code !== 'EAGAIN') return e;
      Atomics.wait(pause, 0, 0, 1);
    }
  }
  return null;
}

const pause = new Int32Array(new SharedArrayBuffer(4));

// direct makes a standard stream write at once.
function direct(name, fd) {
  const stream = new Writable({ write: (_, __, done) => done() });
  stream.fd = fd;
  stream.write = (chunk, encoding, done) => {
    if (typeof encoding === 'function') [encoding, done] = ['utf8', encoding];
    const data = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    const error = writeAll(fd, data);
    if (typeof done === 'function') process.nextTick(done, error);
    return true;
  };
  stream.end = (chunk, encoding, done) => {
    if (typeof chunk === 'string' || chunk instanceof Uint8Array) stream.write(chunk, encoding, done);
    return stream;
  };
  Object.defineProperty(process, name, { value: stream, configurable: true, enumerable: true });
}
direct('stdout', 1);
direct('stderr', 2);

let outbox = Buffer.alloc(0); // what an interrupt kept from being sent; nothing may follow a part of a message but its rest

function send(kind, body = Buffer.alloc(0)) {
  body = Buffer.from(body);
  outbox = Buffer.concat([outbox, Buffer.from(`${kind} ${run} ${body.length}\n`), body]);
  while (outbox.length > 0) {
    try {
      outbox = outbox.subarray(fs.writeSync(3, outbox));
    } catch (e) {
      if (e.code !== 'EAGAIN') process.exit(1);
      Atomics.wait(pause, 0, 0, 1);
    }
  }
}

function result(kind, parts) {
  const size = parts.reduce((n, p) => n + p.data.length, 0);
  if (sent + size > MOST_RESULTS) {
    send('drop');
    return;
  }
  sent += size;
  const head = parts.map((p) => `${p.mime} ${p.data.length} ${p.form}\n`).join('') + '\n';
  send(kind, Buffer.concat([Buffer.from(head), ...parts.map((p) => p.data)]));
}

// bundle is a value in every form that it has.
function bundle(value) {
  const forms = {};
  const own = value !== null && (typeof value === 'object' || typeof value === 'function') && value[Symbol.for('Jupyter.display')];
  if (typeof own === 'function') {
    try {
      Object.assign(forms, own.call(value));
    } catch {
      // it has no form of its own then
    }
  }
  if (forms['text/plain'] === undefined) {
    forms['text/plain'] = util.inspect(value, { maxStringLength: MOST_TEXT });
  }
  const parts = [];
  for (const [mime, data] of Object.entries(forms).slice(0, 32)) {
    if (mime === 'application/json' || mime.endsWith('+json')) {
      parts.push({ mime, form: 'json', data: Buffer.from(typeof data === 'string' ? data : JSON.stringify(data)) });
    } else if (Buffer.isBuffer(data) || data instanceof Uint8Array) {
      parts.push({ mime, form: 'data', data: Buffer.from(data) });
    } else {
      const binary = mime.startsWith('image/') && mime !== 'image/svg+xml';
      parts.push({ mime, form: 'data', data: Buffer.from(String(data), binary ? 'base64' : 'utf8') });
    }
  }
  return parts;
}

// awaits reports whether node contains an await that is not within a function.
function awaits(node) {
  if (node === null || typeof node !== 'object') return false;
  if (Array.isArray(node)) return node.some(awaits);
  if (/Function/.test(node.type || '')) return false;
  if (node.type === 'AwaitExpression' || (node.type === 'ForOfStatement' && node.await)) return true;
  if (node.type === 'ImportDeclaration') return true;
  return Object.values(node).some((v) => v !== null && typeof v === 'object' && awaits(v));
}

function names(pattern) {
  switch (pattern && pattern.type) {
    case 'Identifier': return [pattern.name];
    case 'ObjectPattern': return pattern.properties.flatMap((p) => names(p.type === 'RestElement' ? p.argument : p.value));
    case 'ArrayPattern': return pattern.elements.flatMap(names);
    case 'AssignmentPattern': return names(pattern.left);
    case 'RestElement': return names(pattern.argument);
    default: return [];
  }
}

// prepare rewrites a program so that what it declares at the top stays for the next one, may be declared again, and await works there.
function prepare(source) {
  if (acorn === null) return { source, asynchronous: false, value: true };
  const tree = acorn.parse(source, {
    ecmaVersion: 'latest', sourceType: 'script', allowAwaitOutsideFunction: true, allowImportExportEverywhere: true, allowHashBang: true,
  });
  const asynchronous = awaits(tree.body);
  const edits = []; // [start, end, text]
  const declared = [];
  let head = '';
  for (const node of tree.body) {
    if (node.type === 'VariableDeclaration') {
      const found = node.declarations.flatMap((d) => names(d.id));
      if (!asynchronous) {
        edits.push([node.start, node.start + node.kind.length, 'var']);
        continue;
      }
      declared.push(...found);
      edits.push([node.start, node.declarations[0].start, ';(']);
      for (const d of node.declarations) {
        if (d.init === null) edits.push([d.end, d.end, node.kind === 'var' ? '' : ' = undefined']);
      }
      const last = node.declarations[node.declarations.length - 1];
      edits.push([last.end, node.end, ');']);
    } else if (node.type === 'ClassDeclaration') {
      declared.push(node.id.name);
      edits.push([node.start, node.start, `${node.id.name} = `], [node.end, node.end, ';']);
    } else if (node.type === 'FunctionDeclaration' && asynchronous) {
      declared.push(node.id.name);
      head += `globalThis.${node.id.name} = ${node.id.name};`;
    } else if (node.type === 'ImportDeclaration') {
      const fields = [];
      let assign = '';
      for (const s of node.specifiers) {
        declared.push(s.local.name);
        if (s.type === 'ImportNamespaceSpecifier') assign += `${s.local.name} = __m;`;
        else fields.push(`${s.type === 'ImportDefaultSpecifier' ? 'default' : s.imported.name || JSON.stringify(s.imported.value)}: ${s.local.name}`);
      }
      if (fields.length > 0) assign += `({${fields.join(', ')}} = __m);`;
      edits.push([node.start, node.end, `{ const __m = await import(${node.source.raw}); ${assign} }`]);
    }
  }
  const last = tree.body[tree.body.length - 1];
  const value = last !== undefined && last.type === 'ExpressionStatement';
  if (asynchronous && value) {
    edits.push([last.start, last.expression.start, 'return { __proto__: null, value: (' + source.slice(last.start, last.expression.start)]);
    edits.push([last.expression.end, last.end, source.slice(last.expression.end, last.end).replace(/;$/, '') + ') };']);
  }
  edits.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let out = '';
  let at = 0;
  for (const [start, end, text] of edits) {
    out += source.slice(at, start) + text;
    at = end;
  }
  out += source.slice(at);
  const vars = declared.length > 0 ? `var ${[...new Set(declared)].join(', ')};` : '';
  if (asynchronous) out = `${vars}(async () => {${head}${out}\n})()`;
  else out = vars + out;
  return { source: out, asynchronous, value };
}

function compile(source, number) {
  if (typescript) {
    if (typeof module_.stripTypeScriptTypes !== 'function') throw new Error('this node cannot run TypeScript: 22.13 and newer can');
    source = module_.stripTypeScriptTypes(source, { mode: 'transform' });
  }
  const options = { filename: `cell-${number}.js` };
  const fallback = (name) => {
    if (!/^(\.|\/|[a-z]+:)/.test(name)) {
      try {
        name = require_.resolve(name);
      } catch {
        return import(name);
      }
    }
    return import(path.isAbsolute(name) || name.startsWith('.') ? 'file://' + path.resolve(name) : name);
  };
  options.importModuleDynamically = (vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER) || fallback;
  let prepared;
  try {
    prepared = prepare(source);
  } catch {
    prepared = { source, asynchronous: false, value: true }; // v8 says better what is wrong
  }
  return { script: new vm.Script(prepared.source, options), ...prepared };
}

// guard runs step such that an interrupt ends it, from its first moment on. While node leaves it, for less than a millisecond, SIGINT
// has its default action: an interrupt that comes just then ends the interpreter, and the context is lost.
const guard = new vm.Script('globalThis[Symbol.for("cay.step")]()', { filename: __filename });
let step = () => {};
Object.defineProperty(globalThis, Symbol.for('cay.step'), { value: () => step() });

async function execute(source) {
  const interrupt = new Promise((_, reject) => { stop = () => reject(new Interrupted()); });
  interrupt.catch(() => {});
  const failure = new Promise((_, reject) => { broken = reject; });
  failure.catch(() => {});
  try {
    let cell;
    let value;
    step = () => {
      send('begin');
      cell = compile(source, run);
      value = cell.script.runInThisContext({ displayErrors: true });
    };
    guard.runInThisContext({ breakOnSigint: true });
    if (cell.asynchronous) {
      value = await Promise.race([value, interrupt, failure]);
      value = value === undefined ? undefined : value.value;
    }
    if (cell.value && value !== undefined) result('main', bundle(value));
    return 0;
  } catch (e) {
    const interrupted = e instanceof Interrupted || (e !== null && typeof e === 'object' && (e.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED' || e.signal === 'SIGINT'));
    failed(interrupted ? new Interrupted() : e);
    return interrupted ? 130 : 1;
  } finally {
    stop = null;
    broken = null;
  }
}

// settle takes an interrupt that node hands on only after the program that it was for has ended: it would end the next one.
function settle() {
  step = () => { for (const end = Date.now() + 10; Date.now() < end;); };
  try {
    guard.runInThisContext({ breakOnSigint: true });
  } catch {
    // that was it
  }
}

// trace is an error's stack without the frames of this file and of node's below it.
function trace(e) {
  if (e === null || typeof e !== 'object' || typeof e.stack !== 'string') return 'Uncaught ' + util.inspect(e);
  const lines = e.stack.split('\n');
  const ours = lines.findIndex((l) => l.includes(__filename) || /^\s+at (new Script|Script\.runInThisContext) /.test(l));
  return (ours < 0 ? lines : lines.slice(0, ours)).join('\n');
}

function failed(e) {
  const text = trace(e);
  process.stderr.write(text + '\n');
  const isError = e !== null && typeof e === 'object';
  const fields = [isError ? String(e.name || 'Error') : typeof e, isError ? String(e.message) : util.inspect(e), text];
  send('error', Buffer.concat(fields.flatMap((f, i) => {
    const b = Buffer.from(f.replace(/\0/g, ' ')).subarray(0, MOST[i]);
    return i < 2 ? [b, Buffer.from([0])] : [b];
  })));
}

async function perform(kind, number, body) {
  run = number;
  sent = 0;
  const code = await execute(kind === 'file' ? fs.readFileSync(body.toString(), 'utf8') : body.toString('utf8'));
  if (code === 130) settle();
  send('done', String(code));
}

process.on('SIGINT', () => { if (stop !== null) stop(); });
process.on('uncaughtException', (e) => {
  if (broken !== null) broken(e);
  else process.stderr.write(trace(e) + '\n');
});

const require_ = module_.createRequire(path.join(process.cwd(), 'cell.js'));
const scope = { require: require_, module: { exports: {} }, exports: {}, display: (...values) => values.forEach((v) => result('display', bundle(v))) };
for (const [name, value] of Object.entries(scope)) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}
process.argv.splice(1);

let buffer = Buffer.alloc(0);
control.on('data', (data) => {
  buffer = Buffer.concat([buffer, data]);
  const end = buffer.indexOf(10);
  if (end < 0) return;
  const [kind, number, size] = buffer.subarray(0, end).toString().split(' ');
  if (buffer.length < end + 1 + Number(size)) return;
  const body = buffer.subarray(end + 1, end + 1 + Number(size));
  buffer = buffer.subarray(end + 1 + Number(size));
  perform(kind, number, body);
});
control.on('end', () => process.exit(0));
control.on('error', () => process.exit(0));
send('ready');
