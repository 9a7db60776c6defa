// What check-drawings.sh asks of a page: run at the end of a copy of it, this replaces the page by a
// list of findings, one a line, each of which begins with "ok" or "FAILED".
(() => {
  const findings = [];
  const judge = (good, what) => findings.push(`${good ? "ok" : "FAILED"} ${what}`);
  const box = (element) => element.getBoundingClientRect();
  const is_seen = (element) => box(element).width > 0 && box(element).height > 0;

  // Brightness as the guidelines for accessible content (WCAG 2.2) define it.
  const luminance = (colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  const check_figure = (figure) => {
    const title = figure.querySelector(":scope > title")?.textContent ?? "";
    const say = (good, what) => judge(good, `figure "${title}": ${what}`);
    say(title !== "" && figure.querySelector("text.heading") !== null, "has a title");
    say(is_seen(figure), `is seen, ${Math.round(box(figure).width)}x${Math.round(box(figure).height)}`);

    const axes = [...figure.querySelectorAll("text.axis")].map((axis) => axis.firstChild.data);
    say(axes.length >= 2, `has ${axes.length} titles of axes`);
    for (const axis of axes) {
      say(/\(.+\)/.test(axis), `unit of "${axis}"`);
    }
    const entries = figure.querySelectorAll("g.legend text");
    say(entries.length > 0, `has a legend of ${entries.length} entries`);
    const shapes = [...figure.querySelectorAll("polyline, circle, .cells path, g[color] rect")];
    const hidden = shapes.filter((shape) => box(shape).width === 0 && box(shape).height === 0);
    say(shapes.length > 0 && hidden.length === 0, `${shapes.length} shapes, ${hidden.length} of them without a size`);

    const texts = [...figure.querySelectorAll("text")];
    const words = (text) => `"${text.firstChild.data}"`;
    const lost = texts.filter((text) => !is_seen(text));
    say(lost.length === 0, `all text is seen ${lost.map(words)}`);
    const frame = box(figure);
    const outside = texts.filter((text) => {
      const place = box(text);
      return place.left < frame.left || place.right > frame.right || place.top < frame.top || place.bottom > frame.bottom;
    });
    say(outside.length === 0, `all text is within the figure ${outside.map(words)}`);
    const overlapping = [];
    texts.forEach((one, index) => {
      for (const other of texts.slice(index + 1)) {
        const [a, b] = [box(one), box(other)];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        // Boxes of lines of text touch where no letter does: a fifth of the height is no overlap.
        if (across > 1 && down > 0.2 * Math.min(a.height, b.height)) {
          overlapping.push(`${words(one)} and ${words(other)}`);
        }
      }
    });
    say(overlapping.length === 0, `no text lies on other text ${overlapping.join("; ")}`);
    const paper = getComputedStyle(figure.querySelector(".paper")).fill;
    const faint = texts.filter((text) => contrast(getComputedStyle(text).fill, paper) < 4.5);
    say(faint.length === 0, `all text stands out from ${paper} ${faint.map(words)}`);
    // Lines and points need less contrast than text; where colours are pale, the legend helps.
    const lines = [...figure.querySelectorAll("g[color]")];
    const pale = lines.filter((line) => contrast(getComputedStyle(line).color, paper) < 2);
    say(pale.length === 0, `${pale.length} colours are lost on the ground`);
  };

  // Words that begin on one line and end on another, though one had room for them.
  const broken_words = (elements) => {
    const broken = [];
    for (const element of elements) {
      const text = element.firstChild;
      if (text?.nodeType !== Node.TEXT_NODE) continue;
      const widths = (start, length) => {
        const range = document.createRange();
        range.setStart(text, start);
        range.setEnd(text, start + length);
        return [...range.getClientRects()].map((part) => part.width).filter((width) => width > 0);
      };
      for (const chunk of text.data.matchAll(/\S+/g)) {
        const whole = widths(chunk.index, chunk[0].length).reduce((sum, width) => sum + width, 0);
        if (whole >= box(element).width && !element.matches("th, td")) continue;
        for (const word of chunk[0].matchAll(/[\p{L}\p{N}_]+/gu)) {
          if (widths(chunk.index + word.index, word[0].length).length > 1) broken.push(word[0]);
        }
      }
    }
    return broken;
  };

  const figures = [...document.querySelectorAll('svg[role="img"]')];
  judge(figures.length > 0, `${figures.length} figures`);
  figures.forEach(check_figure);

  if (document.querySelector("main")) {
    judge(document.title !== "" && document.documentElement.lang !== "", "page: has a title and a language");
    const cells = [...document.querySelectorAll("th")];
    judge(cells.every((cell) => cell.scope), `page: all ${cells.length} table headers have a scope`);
    const width = Math.round(box(document.documentElement).width);
    judge(document.body.scrollWidth <= width, `page: fits a window of ${width}`);
    const broken = broken_words(document.querySelectorAll("h1, h2, p, th, td"));
    judge(broken.length === 0, `page: no word is broken ${broken}`);
    const ground = getComputedStyle(document.body);
    judge(contrast(ground.color, ground.backgroundColor) >= 7, "page: text stands out");
  }
  // The one script is this.
  judge(document.scripts.length === 1, "no script");
  const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
  judge(loaded.length === 0 && !document.querySelector("[src], [href], link"), `nothing from elsewhere ${loaded}`);
  findings.push(`height ${Math.ceil(box(document.documentElement).height)}`);

  document.documentElement.textContent = `\nfindings\n${findings.join("\n")}\n`;
})();
