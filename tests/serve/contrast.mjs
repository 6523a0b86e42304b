// Runs in the page: words whose contrast with what is behind them is below WCAG's AA.
export const lowContrast = () => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((part, i) => part * top[3] + below[i] * (1 - top[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return [...layers.reverse(), ...shapes(element)].reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  // The cells of a map on which a number is drawn.
  const shapes = (element) => {
    if (!(element instanceof SVGTextElement)) return [];
    const box = element.getBBox();
    const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2);
    return [...element.ownerSVGElement.querySelectorAll(".cell")].filter((cell) => cell.isPointInFill(middle)).map((cell) => {
      const style = getComputedStyle(cell);
      const [r, g, b, a] = rgba(style.fill);
      return [r, g, b, a * Number(style.fillOpacity)];
    });
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, noscript, option, .unseen, .skip") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(rgba(element instanceof SVGElement ? style.fill : style.color), back);
    const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.push(`${node.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
};
