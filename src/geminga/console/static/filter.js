// Filter of messages: runs a program in a worker, whose policy allows no network.

const meets = (value, path, operator, wanted) => {
  const found = path.split(".").reduce((inside, name) => inside?.[name], value);
  const [left, right] = typeof found === "number" ? [found, Number(wanted)] : [String(found), wanted];
  return { "=": left === right, "!=": left !== right, "~": String(left).includes(wanted), ">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right }[operator];
};

// Answers which messages to show, null for a program that cannot be compiled, and the first error.
onmessage = ({ data: [program, messages], ports: [port] }) => {
  let [shown, failed] = [null, ""];
  try {
    const shows = new Function("meets", "{ value, key, properties, partition, id, publishTime }", program);
    shown = messages.map((message) => {
      try {
        return message !== null && Boolean(shows(meets, message));
      } catch (error) {
        failed ||= String(error);
        return false;
      }
    });
  } catch (error) {
    failed = String(error);
  }
  port.postMessage([shown, failed]);
};
