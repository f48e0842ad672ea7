// Browsers start no web worker for a page from file://. The search, which is one, then
// runs in a hidden frame instead.
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement('iframe');
      frame.hidden = true;
      this.started = new Promise((resolve, reject) => {
        frame.addEventListener('load', () => {
          const scope = frame.contentWindow;
          const load = (source) => new Promise((loaded, failed) => {
            const script = scope.document.createElement('script');
            script.onload = () => loaded(scope);
            script.onerror = failed;
            script.src = source;
            scope.document.body.appendChild(script);
          });
          scope.postMessage = (data) => {
            this.dispatchEvent(new MessageEvent('message', {data}));
          };
          scope.importScripts = async (...sources) => {
            for (const source of sources) await load(source);
          };
          load(url).then(resolve, reject);
        }, {once: true});
      });
      document.body.appendChild(frame);
    }

    postMessage(message) {
      this.started.then((scope) => {
        const data = structuredClone(message);
        scope.dispatchEvent(new MessageEvent('message', {data}));
      });
    }
  };
}
