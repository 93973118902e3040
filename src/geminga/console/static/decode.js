// Payloads as text: decoded by the topic's schema, else as text, CBOR, MessagePack or bytes.

const TEXT = new TextDecoder("utf-8", { fatal: true });
const SHOWN_BYTES = 512;
const DUMPED_LINES = 4096;
const INDENTED_MAX = 1e5; // characters

export function bytesOf(base64) {
  const raw = atob(base64 ?? "");
  return Uint8Array.from(raw, (each) => each.charCodeAt(0));
}

// `schema`: {type, data} of the schema registry, or null. Returns the text to show.
export function decode(payload, schema, cut) {
  try {
    if (schema && !cut) return bySchema(payload, schema);
  } catch (error) {
    return `${plain(payload)}\n(does not match the schema: ${error.message})`;
  }
  return plain(payload);
}

// `other(payload)`: the text of other bytes, or null.
function plain(payload, other = packed) {
  try {
    const text = TEXT.decode(payload);
    if (!/[\x00-\x08\x0e-\x1f]/.test(text)) return pretty(text);
  } catch { /* no text */ }
  return other(payload) ?? hex(payload.subarray(0, SHOWN_BYTES)) + (payload.length > SHOWN_BYTES ? " …" : "");
}

const part = (bytes) => plain(bytes, () => null);

const hex = (bytes) => Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join(" ");

export function textOf(payload) {
  return new TextDecoder("utf-8").decode(payload);
}

// Whether a text field keeps the bytes: UTF-8 without a byte order mark and carriage returns.
export function isEditable(payload) {
  const bytes = new TextEncoder().encode(textOf(payload));
  return bytes.length === payload.length && payload.every((each, at) => each === bytes[at] && each !== 13);
}

export function jsonText(payload) {
  try {
    return JSON.stringify(JSON.parse(TEXT.decode(payload)), null, 2);
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}

// Offset, sixteen bytes and their ASCII characters in each line.
export function hexDump(payload) {
  const lines = [];
  for (let at = 0; at < payload.length && lines.length < DUMPED_LINES; at += 16) {
    const part = payload.subarray(at, at + 16);
    const text = Array.from(part, (each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex(part).padEnd(47)}  ${text}`);
  }
  if (payload.length > DUMPED_LINES * 16) lines.push("…");
  return lines.join("\n") || "(empty)";
}

function pretty(text) {
  if (text.length < INDENTED_MAX && /^\s*<[?!\w][^]*>\s*$/.test(text)) return indented(text);
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    const flat = JSON.stringify(JSON.parse(text));
    return flat.length <= 160 ? text : JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

function indented(text) {
  let depth = 0;
  return text.replace(/>\s*</g, ">\n<").split("\n").map((line) => {
    if (depth && line.startsWith("</")) depth--;
    const found = " ".repeat(Math.min(depth, DEPTH_MAX)) + line;
    if (/^<[^!?/][^<>]*(?<!\/)>[^<]*$/.test(line)) depth++;
    return found;
  }).join("\n");
}

const time = (milliseconds) => new Date(Number(milliseconds)).toISOString();

// Sizes and readers of a DataView, of the schemas of single values.
const SINGLE = {
  BOOLEAN: [1, "getUint8", Boolean], INT8: [1, "getInt8"], INT16: [2, "getInt16"], INT32: [4, "getInt32"], INT64: [8, "getBigInt64"],
  FLOAT: [4, "getFloat32"], DOUBLE: [8, "getFloat64"], DATE: [8, "getBigInt64", time], TIMESTAMP: [8, "getBigInt64", time],
};

// Whether the text of a value, not the payload, is what the schema encodes.
export const isEncoded = (schema) => ["AVRO", "PROTOBUF_NATIVE"].includes(schema?.type) || Object.hasOwn(SINGLE, schema?.type);

function bySchema(payload, schema) {
  if (schema.type === "AVRO") return json(new Avro(payload, JSON.parse(schema.data)).all());
  if (schema.type === "PROTOBUF_NATIVE") return json(decodeProtobuf(payload, JSON.parse(schema.data)));
  if (schema.type === "STRING") return TEXT.decode(payload);
  if (!Object.hasOwn(SINGLE, schema.type)) return plain(payload);
  const [size, reader, words = String] = SINGLE[schema.type];
  if (payload.length !== size) throw new Error(`${payload.length} bytes, not ${size}`);
  return String(words(view(payload)[reader](0)));
}

const view = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
const plainNumbers = (_name, value) =>
  typeof value !== "bigint" ? value : Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
const json = (value) => JSON.stringify(value, plainNumbers, 1);
const DEPTH_MAX = 64;
const ITEMS_MAX = 10000;

// Reader of a payload. `read` calls `value`, of a subclass, within limits.
class Reader {
  constructor(bytes, schema) {
    this.bytes = bytes;
    this.at = 0;
    this.depth = 0;
    this.items = 0;
    this.schema = schema;
  }

  all() {
    const value = this.read(this.schema);
    if (this.at !== this.bytes.length) throw new Error(`${this.bytes.length - this.at} bytes are left over`);
    return value;
  }

  read(schema) {
    if (++this.depth > DEPTH_MAX || ++this.items > ITEMS_MAX) throw new Error("too many items");
    try {
      return this.value(schema);
    } finally {
      this.depth--;
    }
  }

  take(size) {
    if (!(size >= 0 && this.at + size <= this.bytes.length)) throw new Error("the payload is truncated");
    return this.bytes.subarray(this.at, (this.at += size));
  }

  unsigned(size) {
    return this.take(size).reduce((sum, each) => sum << 8n | BigInt(each), 0n);
  }

  text(size) {
    return TEXT.decode(this.take(Number(size)));
  }

  float(size) {
    const value = view(this.take(size))[{ 2: "getUint16", 4: "getFloat32", 8: "getFloat64" }[size]](0);
    return size === 2 ? half(value) : value;
  }

  // `size` items; null: until the byte that ends them.
  list(size, item = () => this.read()) {
    const found = [];
    while (size === null ? this.bytes[this.at] !== 255 : found.length < size) found.push(item());
    if (size === null) this.at++;
    return found;
  }

  map(size) {
    return Object.fromEntries(this.list(size, () => [this.read(), this.read()]));
  }
}

// Avro's binary encoding, by the writer's schema.
class Avro extends Reader {
  constructor(bytes, schema) {
    super(bytes, schema);
    this.names = new Map();
    this.name(schema, "");
  }

  name(schema, space) {
    if (Array.isArray(schema)) schema.forEach((each) => this.name(each, space));
    else if (schema && typeof schema === "object") {
      const within = schema.namespace ?? space;
      if (schema.name && ["record", "error", "enum", "fixed"].includes(schema.type)) {
        if (this.names.has(schema.name)) return;
        this.names.set(schema.name, schema);
        this.names.set(within ? `${within}.${schema.name}` : schema.name, schema);
      }
      for (const field of schema.fields ?? []) this.name(field.type, within);
      for (const part of [schema.items, schema.values]) if (part) this.name(part, within);
      if (schema.type && typeof schema.type === "object") this.name(schema.type, within);
    }
  }

  value(schema) {
    if (Array.isArray(schema)) return this.read(this.pick(schema, Number(this.long())));
    const type = typeof schema === "string" ? schema : schema.type;
    switch (type) {
      case "null": return null;
      case "boolean": return this.take(1)[0] !== 0;
      case "int": return Number(this.long());
      case "long": return this.logical(schema, this.long());
      case "float": return view(this.take(4)).getFloat32(0, true);
      case "double": return view(this.take(8)).getFloat64(0, true);
      case "string": return TEXT.decode(this.take(Number(this.long())));
      case "bytes": return part(this.take(Number(this.long())));
      case "fixed": return part(this.take(schema.size));
      case "enum": return this.pick(schema.symbols, Number(this.long()));
      case "record": case "error":
        return Object.fromEntries(schema.fields.map((field) => [field.name, this.read(field.type)]));
      case "array": return this.blocks(() => this.read(schema.items));
      case "map": return Object.fromEntries(this.blocks(() => [this.read("string"), this.read(schema.values)]));
      default:
        if (typeof type === "object") return this.read(type);
        if (this.names.has(type)) return this.read(this.names.get(type));
        throw new Error(`an unknown type ${type}`);
    }
  }

  logical(schema, value) {
    if (schema.logicalType === "timestamp-millis") return time(value);
    if (schema.logicalType === "timestamp-micros") return time(value / 1000n);
    return value;
  }

  pick(of, index) {
    if (!(index >= 0 && index < of.length)) throw new Error(`number ${index} of ${of.length}`);
    return of[index];
  }

  blocks(item) {
    const found = [];
    for (let left = this.long(); left !== 0n; left = this.long()) {
      if (left < 0n) {
        left = -left;
        this.long();
      }
      for (; left > 0n; left--) found.push(item());
    }
    return found;
  }

  long() {
    const [value, next] = varint(this.bytes, this.at);
    this.at = next;
    return zigzag(value);
  }
}

const zigzag = (value) => BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));

// --- CBOR and MessagePack: without a schema ---

// An object or list in one of both, as JSON; null for other bytes.
function packed(payload) {
  for (const form of [Cbor, MessagePack]) {
    try {
      const value = new form(payload).all();
      if (value instanceof Object && payload.length > 1) return json(value);
    } catch { /* another form */ }
  }
  return null;
}

const SIMPLE = { 20: false, 21: true, 22: null, 23: null };

class Cbor extends Reader {
  value() {
    const [head] = this.take(1);
    const [kind, low] = [head >> 5, head & 31];
    const wide = 2 ** (low - 24);
    if (kind === 7) return low in SIMPLE ? SIMPLE[low] : this.float(wide);
    const size = low < 24 ? BigInt(low) : low < 28 ? this.unsigned(wide) : null;
    if (size === null && (low < 31 || kind < 2 || kind > 5)) throw new Error("not CBOR");
    switch (kind) {
      case 0: return size;
      case 1: return -1n - size;
      case 2: case 3: return size === null ? this.list(null).join("") : kind === 3 ? this.text(size) : part(this.take(Number(size)));
      case 4: return this.list(size);
      case 5: return this.map(size);
      default: return this.read(); // a tag
    }
  }
}

class MessagePack extends Reader {
  value() {
    const [head] = this.take(1);
    const sized = (first) => Number(this.unsigned(2 ** (head - first)));
    if (head < 0x80) return head;
    if (head < 0x90) return this.map(head & 15);
    if (head < 0xa0) return this.list(head & 15);
    if (head < 0xc0) return this.text(head & 31);
    if (head > 0xdf) return head - 256;
    if (head < 0xc4) return [null, undefined, false, true][head - 0xc0];
    if (head < 0xc7) return part(this.take(sized(0xc4)));
    if (head < 0xca) return part(this.take(sized(0xc7) + 1)); // with the type of an extension
    if (head < 0xcc) return this.float(head === 0xca ? 4 : 8);
    if (head < 0xd0) return this.unsigned(2 ** (head - 0xcc));
    if (head < 0xd4) return BigInt.asIntN(2 ** (head - 0xcd), this.unsigned(2 ** (head - 0xd0)));
    if (head < 0xd9) return part(this.take(2 ** (head - 0xd4) + 1));
    if (head < 0xdc) return this.text(sized(0xd9));
    return head < 0xde ? this.list(sized(0xdb)) : this.map(sized(0xdd));
  }
}

function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const value = exponent > 30 ? 1 / 0 : exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction;
  return bits >> 15 ? -value : value;
}

// --- Protobuf: by the descriptors of a topic's PROTOBUF_NATIVE schema ---
const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5];
const FIELDS_MAX = 20000;

// Numbers of google/protobuf/descriptor.proto.
const FILE_PACKAGE = 2, FILE_MESSAGES = 4, FILE_ENUMS = 5;
const MESSAGE_NAME = 1, MESSAGE_FIELDS = 2, MESSAGE_NESTED = 3, MESSAGE_ENUMS = 4;
const FIELD_NAME = 1, FIELD_NUMBER = 3, FIELD_LABEL = 4, FIELD_TYPE = 5, FIELD_TYPE_NAME = 6;
const REPEATED = 3;
const [STRING, MESSAGE, RAW, ENUM] = [9, 11, 12, 14];

const FIXED = { 1: [8, "getFloat64"], 2: [4, "getFloat32"], 6: [8, "getBigUint64"], 7: [4, "getUint32"], 15: [4, "getInt32"], 16: [8, "getBigInt64"] };

// `definition`: {fileDescriptorSet: base64, rootMessageTypeName}. Returns a plain object.
function decodeProtobuf(payload, definition) {
  return new Types(bytesOf(definition.fileDescriptorSet)).read(payload, `.${definition.rootMessageTypeName}`, 0);
}

class Types {
  constructor(set) {
    this.messages = new Map();
    this.enums = new Map();
    this.fields = 0;
    for (const file of all(wire(set), 1)) {
      const parts = wire(file);
      const space = text(parts, FILE_PACKAGE);
      this.collect(all(parts, FILE_MESSAGES), all(parts, FILE_ENUMS), space ? `.${space}` : "", 0);
    }
  }

  collect(messages, enums, space, depth) {
    if (depth > DEPTH_MAX) throw new Error("too deep");
    for (const each of enums) {
      const parts = wire(each);
      this.enums.set(`${space}.${text(parts, 1)}`, new Map(all(parts, 2).map((value) => {
        const pair = wire(value);
        return [Number(BigInt.asIntN(32, number(pair, 2))), text(pair, 1)];
      })));
    }
    for (const each of messages) {
      const parts = wire(each);
      const name = `${space}.${text(parts, MESSAGE_NAME)}`;
      this.messages.set(name, new Map(all(parts, MESSAGE_FIELDS).map((field) => {
        const found = wire(field);
        return [Number(number(found, FIELD_NUMBER)), {
          name: text(found, FIELD_NAME), type: Number(number(found, FIELD_TYPE)), of: text(found, FIELD_TYPE_NAME),
          repeated: Number(number(found, FIELD_LABEL)) === REPEATED,
        }];
      })));
      this.collect(all(parts, MESSAGE_NESTED), all(parts, MESSAGE_ENUMS), name, depth + 1);
    }
  }

  read(bytes, name, depth) {
    const fields = this.messages.get(name);
    if (!fields) throw new Error(`no message ${name} in the schema`);
    if (depth > DEPTH_MAX) throw new Error("too deep");
    const found = {};
    for (const [at, kind, value] of wire(bytes)) {
      if (++this.fields > FIELDS_MAX) throw new Error("too much of it");
      const field = fields.get(at);
      if (!field) continue; // unknown field of a newer schema version
      const packed = kind === BYTES && field.repeated && ![STRING, MESSAGE, RAW].includes(field.type);
      const values = packed ? unpacked(value, field.type) : [[kind, value]];
      for (const [one, raw] of values) {
        const read = this.value(one, raw, field, depth);
        if (field.repeated) (found[field.name] ??= []).push(read);
        else found[field.name] = read;
      }
    }
    return found;
  }

  value(kind, raw, { type, of }, depth) {
    if ([STRING, MESSAGE, RAW].includes(type) !== (kind === BYTES)) throw new Error("a field has another wire type");
    switch (type) {
      case STRING: return TEXT.decode(raw);
      case MESSAGE: return this.read(raw, of, depth + 1);
      case RAW: return part(raw);
      case ENUM: {
        const value = Number(BigInt.asIntN(32, raw));
        return this.enums.get(of)?.get(value) ?? value;
      }
      case 3: return BigInt.asIntN(64, raw);
      case 5: return Number(BigInt.asIntN(32, raw));
      case 8: return raw !== 0n;
      case 17: case 18: return zigzag(raw);
      default: return FIXED[type] ? view(raw)[FIXED[type][1]](0, true) : raw; // uint32, uint64
    }
  }
}

function unpacked(bytes, type) {
  const [size] = FIXED[type] ?? [];
  const found = [];
  if (size) {
    if (bytes.length % size) throw new Error("packed numbers are truncated");
    for (let at = 0; at < bytes.length; at += size) found.push([size === 8 ? FIXED64 : FIXED32, bytes.subarray(at, at + size)]);
    return found;
  }
  for (let at = 0; at < bytes.length;) {
    const [value, next] = varint(bytes, at);
    found.push([VARINT, value]);
    at = next;
  }
  return found;
}

// A message as [number, kind, value] of each of its fields.
function wire(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const [tag, next] = varint(bytes, at);
    at = next;
    const kind = Number(tag & 7n);
    let value;
    if (kind === VARINT) [value, at] = varint(bytes, at);
    else {
      let size = { [FIXED64]: 8, [FIXED32]: 4 }[kind];
      if (kind === BYTES) {
        const [length, behind] = varint(bytes, at);
        [size, at] = [Number(length), behind];
      }
      if (size === undefined || at + size > bytes.length) throw new Error("the payload is truncated");
      value = bytes.subarray(at, (at += size));
    }
    found.push([Number(tag >> 3n), kind, value]);
    if (found.length > FIELDS_MAX) throw new Error("too much of it");
  }
  return found;
}

function varint(bytes, at) {
  let value = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    if (at >= bytes.length) break;
    const byte = bytes[at++];
    value |= BigInt(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return [BigInt.asUintN(64, value), at];
  }
  throw new Error("a number is too long");
}

const all = (parts, at) => parts.filter(([number, kind]) => number === at && kind === BYTES).map(([, , value]) => value);
const text = (parts, at) => TEXT.decode(all(parts, at)[0] ?? new Uint8Array());
const number = (parts, at) => parts.find(([each, kind]) => each === at && kind === VARINT)?.[2] ?? 0n;
