/** Files for a message: texts, images as small as models see them, and the texts of PDFs. */

import { readPdf } from "./api.js";
import { asCount } from "./dom.js";

const MAX_TEXT = 1 << 20; // bytes of a text file; models read far less
const MAX_IMAGE = 20 << 20;
const KINDS = ["image/png", "image/jpeg", "image/gif", "image/bmp"]; // that the server reads
const SIDE = 1280; // pixels of the longer side of an image, at most
const SMALL = 256 << 10; // bytes up to which an image is sent as it is

/**
 * Return what a message keeps of a file: `name`, `text`, `size`, of an image its data as `image`,
 * and a `note` about what is missing. Throws a text where it cannot be used.
 */
export async function readFile(file) {
  const { name, size, type } = file;
  if (type.startsWith("image/") && type !== "image/svg+xml") {
    return { name, size, text: "", image: await readImage(file) };
  }
  if (type === "application/pdf" || /\.pdf$/i.test(name)) {
    const { text, pages, pages_read: read } = await readPdf(file);
    const note = `Of ${name} the first ${asCount(read)} of ${asCount(pages)} pages are attached.`;
    return { name, size, text, note: read < pages ? note : "" };
  }
  return { name, size, text: await readText(file) };
}

async function readText(file) {
  if (file.size > MAX_TEXT) throw `larger than ${asCount(MAX_TEXT >> 10)} KiB`;
  const bytes = await file.arrayBuffer();
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw "not a text file in UTF-8";
  }
  if (text.includes("\0")) throw "not a text file";
  if (!text.trim()) throw "empty";
  return text;
}

async function readImage(file) {
  if (file.size > MAX_IMAGE) throw `larger than ${asCount(MAX_IMAGE >> 20)} MiB`;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw "not an image that this browser can read";
  }
  const { width, height } = bitmap;
  const scale = SIDE / Math.max(width, height);
  if (scale >= 1 && file.size <= SMALL && KINDS.includes(file.type)) return asAddress(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * Math.min(1, scale)));
  canvas.height = Math.max(1, Math.round(height * Math.min(1, scale)));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // behind what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}

function asAddress(file) {
  return new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(file);
  });
}
