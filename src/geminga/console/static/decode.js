// Payloads as text: decoded by the topic's schema, else as text or as bytes.

import { decodeProtobuf } from "./protobuf.js";

const TEXT = new TextDecoder("utf-8", { fatal: true });
const SHOWN_BYTES = 512;
const DUMPED_LINES = 4096;

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

export function plain(payload) {
  try {
    const text = TEXT.decode(payload);
    // eslint-disable-next-line no-control-regex
    if (!/[\x00-\x08\x0e-\x1f]/.test(text)) return pretty(text);
  } catch { /* no text */ }
  const shown = payload.slice(0, SHOWN_BYTES);
  const hex = Array.from(shown, (each) => each.toString(16).padStart(2, "0")).join(" ");
  return payload.length > shown.length ? `${hex} …` : hex;
}

export function textOf(payload) {
  return new TextDecoder("utf-8").decode(payload);
}

export function jsonText(payload) {
  try {
    return JSON.stringify(JSON.parse(TEXT.decode(payload)), null, 2);
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
}

// Offset, sixteen bytes and their ASCII characters in each line.
export function hexDump(payload) {
  const lines = [];
  for (let at = 0; at < payload.length && lines.length < DUMPED_LINES; at += 16) {
    const part = Array.from(payload.subarray(at, at + 16));
    const hex = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (payload.length > DUMPED_LINES * 16) lines.push("…");
  return lines.join("\n") || "(empty)";
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    const flat = JSON.stringify(JSON.parse(text));
    return flat.length <= 160 ? text : JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

function bySchema(payload, schema) {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  const exactly = (size, read) => {
    if (payload.length !== size) throw new Error(`${payload.length} bytes, not ${size}`);
    return String(read(0));
  };
  const time = (milliseconds) => new Date(Number(milliseconds)).toISOString();
  switch (schema.type) {
    case "STRING": return TEXT.decode(payload);
    case "BOOLEAN": return exactly(1, () => view.getUint8(0) !== 0);
    case "INT8": return exactly(1, (at) => view.getInt8(at));
    case "INT16": return exactly(2, (at) => view.getInt16(at));
    case "INT32": return exactly(4, (at) => view.getInt32(at));
    case "INT64": return exactly(8, (at) => view.getBigInt64(at));
    case "FLOAT": return exactly(4, (at) => view.getFloat32(at));
    case "DOUBLE": return exactly(8, (at) => view.getFloat64(at));
    case "DATE": case "TIMESTAMP": return exactly(8, (at) => time(view.getBigInt64(at)));
    case "AVRO": return JSON.stringify(new Avro(payload, JSON.parse(schema.data)).all(), plainNumbers, 1);
    case "PROTOBUF_NATIVE": return JSON.stringify(decodeProtobuf(payload, JSON.parse(schema.data)), plainNumbers, 1);
    default: return plain(payload);
  }
}

const plainNumbers = (_name, value) =>
  typeof value !== "bigint" ? value : Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
const DEPTH_MAX = 64;
const ITEMS_MAX = 10000;

// Decoder of Avro's binary encoding, by the writer's schema.
class Avro {
  constructor(bytes, schema) {
    this.bytes = bytes;
    this.at = 0;
    this.depth = 0;
    this.items = 0;
    this.schema = schema;
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

  value(schema) {
    if (Array.isArray(schema)) return this.read(this.pick(schema, Number(this.long())));
    const type = typeof schema === "string" ? schema : schema.type;
    switch (type) {
      case "null": return null;
      case "boolean": return this.take(1)[0] !== 0;
      case "int": return Number(this.long());
      case "long": return this.logical(schema, this.long());
      case "float": return this.view(4).getFloat32(0, true);
      case "double": return this.view(8).getFloat64(0, true);
      case "string": return TEXT.decode(this.take(Number(this.long())));
      case "bytes": return plain(this.take(Number(this.long())));
      case "fixed": return plain(this.take(schema.size));
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
    if (schema.logicalType === "timestamp-millis") return new Date(Number(value)).toISOString();
    if (schema.logicalType === "timestamp-micros") return new Date(Number(value / 1000n)).toISOString();
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

  take(size) {
    if (!(size >= 0 && this.at + size <= this.bytes.length)) throw new Error("the payload is truncated");
    return this.bytes.subarray(this.at, (this.at += size));
  }

  view(size) {
    const part = this.take(size);
    return new DataView(part.buffer, part.byteOffset, size);
  }

  long() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const [byte] = this.take(1);
      value |= BigInt(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));
    }
    throw new Error("a number is too long");
  }
}
