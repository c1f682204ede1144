// Browsers refuse workers to pages that were opened from files. The theme's search then runs in a hidden frame, through
// this class; it has the part of Worker that the search uses, and the name that the theme looks for.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.inside = frame.contentWindow;
    // What the script in the frame says arrives here.
    this.inside.postMessage = (data) => {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    };
    this.ready = new Promise((resolve, reject) => {
      const script = this.inside.document.createElement("script");
      script.onload = resolve;
      script.onerror = reject;
      script.src = url;
      this.inside.document.body.appendChild(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
  }

  terminate() {
    this.inside.frameElement.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
