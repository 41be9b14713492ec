/** The browser's storage, which may be full, damaged or switched off. */

/** Kept for all tabs, until it is deleted. */
export const LOCAL = "localStorage";
/** Kept for this tab, until it is closed. */
export const SESSION = "sessionStorage";

/** Return an entry; null if it does not exist or the storage is switched off. */
export function readItem(area, key) {
  try {
    return window[area].getItem(key);
  } catch {
    return null;
  }
}

/** Write an entry; return whether the storage took it. */
export function writeItem(area, key, text) {
  try {
    window[area].setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

export function removeItem(area, key) {
  try {
    window[area].removeItem(key);
  } catch {
    // nothing was kept
  }
}

/** Return the keys of all entries that begin with a prefix. */
export function keysOf(area, prefix) {
  try {
    return Object.keys(window[area]).filter((key) => key.startsWith(prefix));
  } catch {
    return [];
  }
}

/** Return the value of a JSON text; null if it is not valid JSON. */
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
