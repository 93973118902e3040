// Decoder of Protobuf's encoding, by the descriptors of a topic's PROTOBUF_NATIVE schema.

const TEXT = new TextDecoder("utf-8", { fatal: true });
const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5];
const DEPTH_MAX = 64;
const FIELDS_MAX = 20000;

// Numbers of google/protobuf/descriptor.proto.
const FILE_PACKAGE = 2, FILE_MESSAGES = 4, FILE_ENUMS = 5;
const MESSAGE_NAME = 1, MESSAGE_FIELDS = 2, MESSAGE_NESTED = 3, MESSAGE_ENUMS = 4;
const FIELD_NAME = 1, FIELD_NUMBER = 3, FIELD_LABEL = 4, FIELD_TYPE = 5, FIELD_TYPE_NAME = 6;
const REPEATED = 3;
const [STRING, MESSAGE, RAW, ENUM] = [9, 11, 12, 14];

// `definition`: {fileDescriptorSet: base64, rootMessageTypeName}. Returns a plain object.
export function decodeProtobuf(payload, definition) {
  const types = new Types(Uint8Array.from(atob(definition.fileDescriptorSet), (each) => each.charCodeAt(0)));
  return types.read(payload, `.${definition.rootMessageTypeName}`, 0);
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
      case RAW: return Array.from(raw.slice(0, 64), (each) => each.toString(16).padStart(2, "0")).join(" ");
      case ENUM: {
        const value = Number(BigInt.asIntN(32, raw));
        return this.enums.get(of)?.get(value) ?? value;
      }
      case 1: return new DataView(raw.buffer, raw.byteOffset, 8).getFloat64(0, true);
      case 2: return new DataView(raw.buffer, raw.byteOffset, 4).getFloat32(0, true);
      case 3: return BigInt.asIntN(64, raw);
      case 5: return Number(BigInt.asIntN(32, raw));
      case 8: return raw !== 0n;
      case 17: case 18: return BigInt.asIntN(64, (raw >> 1n) ^ -(raw & 1n));
      case 6: return new DataView(raw.buffer, raw.byteOffset, 8).getBigUint64(0, true);
      case 16: return new DataView(raw.buffer, raw.byteOffset, 8).getBigInt64(0, true);
      case 7: return new DataView(raw.buffer, raw.byteOffset, 4).getUint32(0, true);
      case 15: return new DataView(raw.buffer, raw.byteOffset, 4).getInt32(0, true);
      default: return raw; // uint32, uint64
    }
  }
}

function unpacked(bytes, type) {
  const size = { 1: 8, 6: 8, 16: 8, 2: 4, 7: 4, 15: 4 }[type];
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
