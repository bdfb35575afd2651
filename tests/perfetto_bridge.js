// Runs Perfetto's trace processor, the WebAssembly module of its user interface, in Node.js.
//
//     node perfetto_bridge.js FOLDER
//
// FOLDER has engine_bundle.js and the modules that it loads. Each message on standard input and output is its length,
// four bytes in little-endian order, then bytes of a TraceProcessorRpcStream. The bundle expects a browser's worker.

"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

function content(address) {
  const bytes = fs.readFileSync(path.join(folder, path.basename(address)));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
}

class FileRequest {
  open(method, address) {
    this.address = address;
  }

  send() {
    this.status = 200;
    this.response = content(this.address);
  }
}

const said = { log: console.error, warn: console.error, error: console.error };
const worker = {
  console: said, URL, TextDecoder, TextEncoder, performance, crypto, setTimeout, clearTimeout, queueMicrotask,
  XMLHttpRequest: FileRequest,
  WorkerGlobalScope: class {},
  location: { href: "http://localhost/engine_bundle.js", protocol: "http:", host: "localhost" },
  fetch: async (address) => ({ ok: true, status: 200, url: address, arrayBuffer: async () => content(address) }),
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
const WorkerBytes = vm.runInContext("Uint8Array", worker);  // what its own `instanceof` accepts

function write(bytes) {
  for (let at = 0; at < bytes.length;) at += fs.writeSync(1, bytes, at);
}

function read(count) {
  const bytes = Buffer.alloc(count);
  for (let at = 0; at < count;) {
    const more = fs.readSync(0, bytes, at, count - at);
    if (more === 0) process.exit(0);
    at += more;
  }
  return bytes;
}

const port = {
  postMessage(message) {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(message.length);
    write(length);
    write(Buffer.from(message));
  },
};
worker.onmessage({ data: port });

setTimeout(() => {  // the module is instantiated in tasks that came before
  for (;;) port.onmessage({ data: WorkerBytes.from(read(read(4).readUInt32LE())) });
}, 500);
