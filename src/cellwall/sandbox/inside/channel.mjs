// The only connection of this interpreter to the supervisor: frames over descriptors 3 and 4.
//
// A frame is two lengths, a JSON object and raw bytes, as in channel.py. The supervisor reads the
// frames of a cell as bounded, plain data: code can write to the same descriptors.

import { Buffer } from "node:buffer";
import net from "node:net";

const REPORTS = 3;
const REQUESTS = 4;
const HEAD_BYTES = 8;
const { parse, stringify } = JSON; // code may replace them

export class Channel {
  // Sockets, since Deno opens inherited descriptors in no other way.
  #reports = new net.Socket({ fd: REPORTS, readable: false, writable: true });
  #requests = new net.Socket({ fd: REQUESTS, readable: true, writable: false });
  #buffer = Buffer.alloc(HEAD_BYTES);
  #filled = 0;
  #write = this.#reports.write.bind(this.#reports); // code may replace the method
  #handle;

  // `handle(message, blob)` is called for each frame, `end()` when the supervisor has closed.
  constructor(handle, end) {
    this.#handle = handle;
    this.#requests.on("data", (chunk) => this.#feed(chunk));
    this.#requests.on("end", end);
    this.#requests.on("error", end);
    this.#reports.on("error", () => {}); // code closed the descriptor: it gets no answer
  }

  write(message) {
    const text = Buffer.from(stringify(message), "utf8");
    const head = Buffer.alloc(HEAD_BYTES);
    head.writeUInt32BE(text.length, 0);
    this.#write(Buffer.concat([head, text]));
  }

  // Calls `then` when all is written; no more frames are read or written.
  close(then) {
    this.#requests.destroy();
    this.#reports.end(then);
  }

  #feed(chunk) {
    let at = 0;
    while (at < chunk.length) {
      const count = Math.min(chunk.length - at, this.#buffer.length - this.#filled);
      chunk.copy(this.#buffer, this.#filled, at, at + count);
      this.#filled += count;
      at += count;
      if (this.#filled < this.#buffer.length) return;
      const textEnd = HEAD_BYTES + this.#buffer.readUInt32BE(0);
      const end = textEnd + this.#buffer.readUInt32BE(4);
      if (this.#filled === HEAD_BYTES && end > HEAD_BYTES) {
        const whole = Buffer.alloc(end);
        this.#buffer.copy(whole);
        this.#buffer = whole;
        continue;
      }
      const whole = this.#buffer;
      this.#buffer = Buffer.alloc(HEAD_BYTES);
      this.#filled = 0;
      const message = parse(whole.toString("utf8", HEAD_BYTES, textEnd));
      this.#handle(message, whole.subarray(textEnd));
    }
  }
}
