// Search runs in a worker, and a browser starts none for a page that was opened from a folder. There, a hidden frame takes its
// place: it runs the same script, and messages go to it and come back as events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.inside = new Promise((resolve) => {
        this.frame.addEventListener("load", () => {
          const { contentWindow, contentDocument } = this.frame;
          contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = contentDocument.createElement("script");
          script.addEventListener("load", () => resolve(contentWindow));
          script.src = url;
          contentDocument.body.append(script);
        }, { once: true });
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.inside.then((frame) => frame.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
