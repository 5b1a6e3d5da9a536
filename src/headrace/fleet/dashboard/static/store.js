// What the page knows: the last answer, and the series and requests that grow with each.

const FINE = 300;
const COARSE = 360;

export function makeStore() {
  const store = {
    snapshot: null,
    fine: makeSeries(FINE),
    coarse: makeSeries(COARSE),
    requests: [],
    requestsEnd: 0,
    look() {
      const life = store.snapshot?.gateway.life ?? "";
      return { life, fine: store.fine.end, coarse: store.coarse.end, requests: store.requestsEnd };
    },
    take(snapshot) {
      if (store.snapshot && store.snapshot.gateway.life !== snapshot.gateway.life) store.reset();
      store.snapshot = snapshot;
      store.fine.take(snapshot.fine);
      store.coarse.take(snapshot.coarse);
      const { items, end, kept } = snapshot.requests;
      let number = end - items.length;
      for (const item of items) item.number = number++;
      store.requests.push(...items);
      store.requests.splice(0, Math.max(0, store.requests.length - kept));
      store.requestsEnd = end;
    },
    /** The gateway has started again: nothing of before belongs to it. */
    reset() {
      store.snapshot = null;
      store.fine = makeSeries(FINE);
      store.coarse = makeSeries(COARSE);
      store.requests = [];
      store.requestsEnd = 0;
    },
  };
  return store;
}

function makeSeries(length) {
  return {
    end: 0,
    length,
    resolution: 1,
    columns: {},
    take(part) {
      this.resolution = part.resolution;
      for (const [name, values] of Object.entries(part.columns)) {
        let column = this.columns[name];
        // A gap: this tab slept for longer than the gateway keeps.
        if (!column || part.first > this.end) column = this.columns[name] = [];
        column.push(...values);
        column.splice(0, Math.max(0, column.length - length));
      }
      this.end = part.end;
    },
    last(name, count = 1) {
      return (this.columns[name] ?? []).slice(-count);
    },
  };
}

/** Mean of what is known; null where nothing is. */
export function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

/** The last value that is known. */
export function latest(values) {
  for (let n = values.length - 1; n >= 0; n--) if (values[n] !== null) return values[n];
  return null;
}
