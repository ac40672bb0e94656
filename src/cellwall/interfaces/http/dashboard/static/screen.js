// A screen of a terminal: bytes of a program in, cells out. The sequences are those that the service lets
// through (ScreenFilter): cursor, erasing, colours, scrolling, insert mode, alternate screen. Unknown ones are dropped.
"use strict";
(() => {
  const MAX_HISTORY = 2000, MAX_SIDE = 500;
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/;
  const blank = { text: " ", style: "" };
  class TerminalScreen {
    constructor(rows, columns) {
      this.history = []; this.row = this.column = 0; this.pen = { fg: "", bg: "", flags: new Set() };
      this.showsCursor = true; this.wraps = true; this.inserts = false; this.keysAreApplication = false; this.isBracketed = false;
      this.waiting = ""; this.saved = null; this.normal = null; this.mustWrap = false;
      this.resize(rows, columns);
    }
    resize(rows, columns) {
      this.rows = Math.max(2, Math.min(MAX_SIDE, rows)); this.columns = Math.max(2, Math.min(MAX_SIDE, columns));
      const old = this.lines || [];
      while (old.length > this.rows) { const line = old.shift(); if (!this.normal) this.keep(line); this.row -= 1; }
      this.lines = Array.from({ length: this.rows }, (_, index) => this.fit(old[index] || []));
      this.row = Math.max(0, Math.min(this.rows - 1, this.row)); this.column = Math.min(this.columns - 1, this.column);
      this.top = 0; this.bottom = this.rows - 1;
    }
    fit(line) { return Array.from({ length: this.columns }, (_, index) => line[index] || blank); }
    keep(line) { this.history.push(line); if (this.history.length > MAX_HISTORY) this.history.shift(); }
    empty() { return Array(this.columns).fill(this.pen.bg ? { text: " ", style: this.style() } : blank); }
    style() {
      const { fg, bg, flags } = this.pen;
      return [fg && `f${fg}`, bg && `b${bg}`, ...flags].filter(Boolean).join(" ");
    }
    write(text) {
      const input = this.waiting + text; this.waiting = "";
      for (let at = 0; at < input.length;) {
        const code = input.charCodeAt(at);
        if (code === 0x1b) {
          const found = /^\x1b(?:\[([0-?]*)([ -/]*)([@-~])|([()])([\s\S])|([^[()]))/.exec(input.slice(at, at + 220));
          if (!found) { if (input.length - at < 220) { this.waiting = input.slice(at); return; } at += 1; continue; }
          at += found[0].length;
          if (found[3]) this.csi(found[1], found[2], found[3]); else if (found[6]) this.escape(found[6]);
        } else if (code < 0x20 || code === 0x7f) { this.control(code); at += 1; }
        else { const sign = String.fromCodePoint(input.codePointAt(at)); this.put(sign); at += sign.length; }
      }
    }
    control(code) {
      if (code === 8) { this.column = Math.max(0, this.column - 1); this.mustWrap = false; }
      else if (code === 9) { this.column = Math.min(this.columns - 1, (Math.floor(this.column / 8) + 1) * 8); }
      else if (code >= 10 && code <= 12) { this.feed(); }
      else if (code === 13) { this.column = 0; this.mustWrap = false; }
    }
    put(sign) {
      if (HIDDEN.test(sign)) return; // it would reorder or hide text beside it
      if (/\p{M}/u.test(sign)) { // a combining mark belongs to the cell before
        const line = this.lines[this.row], index = Math.max(0, this.column - (this.mustWrap ? 0 : 1));
        if (line[index].text.length < 8) line[index] = { ...line[index], text: line[index].text + sign };
        return;
      }
      if (this.mustWrap && this.wraps) { this.column = 0; this.mustWrap = false; this.feed(); }
      const line = this.lines[this.row];
      if (this.inserts) { line.splice(this.column, 0, blank); line.length = this.columns; }
      line[this.column] = { text: sign, style: this.style() };
      if (this.column === this.columns - 1) this.mustWrap = true; else this.column += 1;
    }
    feed() { this.mustWrap = false; if (this.row === this.bottom) this.scroll(1); else if (this.row < this.rows - 1) this.row += 1; }
    scroll(count) {
      const times = Math.min(Math.abs(count), this.rows);
      for (let index = 0; index < times; index++) {
        if (count > 0) {
          const [line] = this.lines.splice(this.top, 1);
          if (this.top === 0 && !this.normal) this.keep(line);
          this.lines.splice(this.bottom, 0, this.empty());
        } else { this.lines.splice(this.bottom, 1); this.lines.splice(this.top, 0, this.empty()); }
      }
    }
    escape(sign) {
      if (sign === "7") this.saved = { row: this.row, column: this.column, pen: { ...this.pen, flags: new Set(this.pen.flags) } };
      else if (sign === "8" && this.saved) { this.row = Math.min(this.rows - 1, this.saved.row); this.column = Math.min(this.columns - 1, this.saved.column); this.pen = { ...this.saved.pen, flags: new Set(this.saved.pen.flags) }; this.mustWrap = false; }
      else if (sign === "D") this.feed();
      else if (sign === "E") { this.column = 0; this.feed(); }
      else if (sign === "M") { if (this.row === this.top) this.scroll(-1); else this.row = Math.max(0, this.row - 1); }
    }
    csi(given, between, final) {
      if (between) return;
      const isPrivate = given.startsWith("?"), numbers = given.replace("?", "").split(/[;:]/).map((each) => Math.min(9999, parseInt(each, 10) || 0));
      const one = Math.max(1, numbers[0]);
      if (final === "m") { this.colour(numbers); return; }
      if (final === "h" || final === "l") { this.mode(numbers, isPrivate, final === "h"); return; }
      const line = this.lines[this.row]; this.mustWrap = false;
      const to = (row, column) => { this.row = Math.max(0, Math.min(this.rows - 1, row)); this.column = Math.max(0, Math.min(this.columns - 1, column)); };
      switch (final) {
        case "A": to(Math.max(this.row >= this.top ? this.top : 0, this.row - one), this.column); break;
        case "B": case "e": to(Math.min(this.row <= this.bottom ? this.bottom : this.rows - 1, this.row + one), this.column); break;
        case "C": case "a": to(this.row, this.column + one); break;
        case "D": to(this.row, this.column - one); break;
        case "E": to(this.row + one, 0); break;
        case "F": to(this.row - one, 0); break;
        case "G": case "`": to(this.row, one - 1); break;
        case "H": case "f": to(one - 1, Math.max(1, numbers[1] || 1) - 1); break;
        case "d": to(one - 1, this.column); break;
        case "I": to(this.row, (Math.floor(this.column / 8) + one) * 8); break;
        case "Z": to(this.row, (Math.ceil(this.column / 8) - one) * 8); break;
        case "J": this.erase(numbers[0]); break;
        case "K": this.eraseLine(line, numbers[0]); break;
        case "L": case "M": if (this.row >= this.top && this.row <= this.bottom) this.shift(final === "M" ? one : -one); break;
        case "P": line.splice(this.column, one); while (line.length < this.columns) line.push(blank); break;
        case "@": line.splice(this.column, 0, ...Array(Math.min(one, this.columns)).fill(blank)); line.length = this.columns; break;
        case "X": for (let index = this.column; index < Math.min(this.columns, this.column + one); index++) line[index] = this.empty()[0]; break;
        case "S": this.scroll(one); break;
        case "T": this.scroll(-one); break;
        case "r": { const top = one - 1, bottom = (numbers[1] || this.rows) - 1; if (top < bottom && bottom < this.rows) { this.top = top; this.bottom = bottom; } to(0, 0); break; }
        case "s": this.escape("7"); break;
        case "u": this.escape("8"); break;
      }
    }
    shift(count) { const top = this.top; this.top = this.row; const wasNormal = this.normal; this.normal = this.normal || {}; this.scroll(count); this.normal = wasNormal; this.top = top; }
    erase(how) {
      if (how >= 2) { this.lines = this.lines.map(() => this.empty()); return; }
      this.eraseLine(this.lines[this.row], how);
      this.lines = this.lines.map((line, index) => ((how === 0 ? index > this.row : index < this.row) ? this.empty() : line));
    }
    eraseLine(line, how) {
      const from = how === 0 ? this.column : 0, to = how === 1 ? this.column + 1 : this.columns, cell = this.empty()[0];
      for (let index = from; index < to; index++) line[index] = cell;
    }
    mode(numbers, isPrivate, isOn) {
      for (const number of numbers) {
        if (!isPrivate) { if (number === 4) this.inserts = isOn; continue; }
        if (number === 1) this.keysAreApplication = isOn;
        else if (number === 7) this.wraps = isOn;
        else if (number === 25) this.showsCursor = isOn;
        else if (number === 2004) this.isBracketed = isOn;
        else if (number === 47 || number === 1047 || number === 1049) this.alternate(isOn);
      }
    }
    alternate(isOn) {
      if (isOn && !this.normal) {
        this.normal = { lines: this.lines, row: this.row, column: this.column };
        this.lines = this.lines.map(() => this.fit([]));
      } else if (!isOn && this.normal) {
        const { lines, row, column } = this.normal;
        this.normal = null; this.lines = Array.from({ length: this.rows }, (_, index) => this.fit(lines[index] || []));
        this.row = Math.min(this.rows - 1, row); this.column = Math.min(this.columns - 1, column);
      }
      this.top = 0; this.bottom = this.rows - 1;
    }
    colour(numbers) {
      for (let index = 0; index < numbers.length; index++) {
        const number = numbers[index], flags = this.pen.flags;
        if (number === 0) { this.pen = { fg: "", bg: "", flags: new Set() }; }
        else if (number === 1) flags.add("bold"); else if (number === 2) flags.add("dim"); else if (number === 3) flags.add("italic");
        else if (number === 4) flags.add("under"); else if (number === 7) flags.add("inverse");
        else if (number === 22) { flags.delete("bold"); flags.delete("dim"); } else if (number === 23) flags.delete("italic");
        else if (number === 24) flags.delete("under"); else if (number === 27) flags.delete("inverse");
        else if (number >= 30 && number <= 37) this.pen.fg = String(number - 30); else if (number >= 90 && number <= 97) this.pen.fg = String(number - 82);
        else if (number >= 40 && number <= 47) this.pen.bg = String(number - 40); else if (number >= 100 && number <= 107) this.pen.bg = String(number - 92);
        else if (number === 39) this.pen.fg = ""; else if (number === 49) this.pen.bg = "";
        else if (number === 38 || number === 48) { // of 256 and 16 million colours the nearest of 16
          const isIndexed = numbers[index + 1] === 5, found = isIndexed ? near256(numbers[index + 2]) : near(numbers.slice(index + 2, index + 5));
          if (number === 38) this.pen.fg = found; else this.pen.bg = found;
          index += isIndexed ? 2 : 4;
        }
      }
    }
    // Into a <pre>: a text node or a span for each run of cells of one style; no HTML is parsed.
    draw(place) {
      const all = [...(this.normal ? [] : this.history), ...this.lines], cursor = all.length - this.rows + this.row, parts = [];
      all.forEach((line, index) => {
        let last = this.columns - 1;
        const at = index === cursor && this.showsCursor ? this.column : -1;
        while (last > at && line[last] && line[last].text === " " && !line[last].style) last -= 1;
        let text = "", style = "";
        const flush = () => { if (!text) return; if (style) { const part = document.createElement("span"); part.className = style; part.textContent = text; parts.push(part); } else parts.push(text); text = ""; };
        for (let column = 0; column <= last; column++) {
          const cell = line[column] || blank, wanted = column === at ? `${cell.style} cursor`.trim() : cell.style;
          if (wanted !== style) { flush(); style = wanted; }
          text += cell.text;
        }
        flush();
        if (index < all.length - 1) parts.push("\n");
      });
      place.replaceChildren(...parts);
    }
  }
  const BASE = [[0, 0, 0], [205, 49, 49], [13, 188, 121], [229, 229, 16], [36, 114, 200], [188, 63, 188], [17, 168, 205], [229, 229, 229], [102, 102, 102], [241, 76, 76], [35, 209, 139], [245, 245, 67], [59, 142, 234], [214, 112, 214], [41, 184, 219], [255, 255, 255]];
  const near = (rgb) => {
    const far = (other) => other.reduce((sum, part, index) => sum + (part - (rgb[index] || 0)) ** 2, 0);
    return String(BASE.reduce((best, other, index) => (far(other) < far(BASE[best]) ? index : best), 0));
  };
  const near256 = (number) => {
    if (number < 16) return String(number);
    if (number >= 232) { const grey = 8 + (number - 232) * 10; return near([grey, grey, grey]); }
    const level = (part) => (part ? 55 + part * 40 : 0), rest = number - 16;
    return near([level(Math.floor(rest / 36)), level(Math.floor(rest / 6) % 6), level(rest % 6)]);
  };
  globalThis.TerminalScreen = TerminalScreen;
})();
