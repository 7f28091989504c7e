import { Icon } from "../ui/icon";
import { useWord } from "../ui/router";
import { listed, toggled } from "./words";

/** Keeps a chart at the top, or lets it go. */
export function PinButton({ name }: { name: string }) {
  const [pins, setPins] = useWord("pin");
  const isPinned = listed(pins).includes(name);
  const label = isPinned ? `Unpin ${name}` : `Pin ${name}`;
  return (
    <button
      type="button"
      data-testid="pin"
      aria-pressed={isPinned}
      aria-label={label}
      title={label}
      onClick={() => setPins(toggled(pins, name))}
    >
      <Icon name="pin" />
    </button>
  );
}
