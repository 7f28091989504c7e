import { Icon, type IconName } from "../ui/icon";
import { setTheme, type Theme, useTheme } from "../ui/theme/theme";
import styles from "./theme-toggle.module.css";

const NEXT: Record<Theme, [next: Theme, icon: IconName, words: string]> = {
  system: ["light", "half", "Colours follow the system"],
  light: ["dark", "sun", "Light colours"],
  dark: ["system", "moon", "Dark colours"],
};

/** Light, dark, or as the system is: one after the other. */
export function ThemeToggle() {
  const [next, icon, words] = NEXT[useTheme()];
  return (
    <button
      type="button"
      className={styles.toggle}
      data-testid="theme"
      aria-label={`${words}; change`}
      title={words}
      onClick={() => setTheme(next)}
    >
      <Icon name={icon} />
    </button>
  );
}
