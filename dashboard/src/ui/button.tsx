import type { ButtonHTMLAttributes } from "react";

import styles from "./button.module.css";

interface Props extends ButtonHTMLAttributes<HTMLButtonElement> {
  tone?: "plain" | "main" | "danger" | "quiet";
}

/** Something to press. */
export function Button({ tone = "plain", className, type = "button", ...rest }: Props) {
  return <button {...rest} type={type} className={classes(styles.button, styles[tone], className)} />;
}

/** Join the class names that apply. */
function classes(...names: (string | false | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}
